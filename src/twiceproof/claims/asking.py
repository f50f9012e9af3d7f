"""How a function's calls become asks: key, fingerprint, link, and everything that can be refused before a write."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from typing import Any

from ..clock import Clock, Ids
from ..errors import Misuse
from ..keys import KeyMaker, Watch, fingerprint
from ..records import Address
from .arguments import Arguments
from .claim import CLAIM, address_of, run_id
from .policy import Policy
from .states import Ask

__all__ = ["Asking", "Link"]

Link = str | Callable[..., str] | None


class Asking:
    """One operation's asks."""

    def __init__(
        self,
        function: Callable[..., Any],
        policy: Policy,
        *,
        key: str | Callable[..., str],
        owner: Ids,
        clock: Clock,
        stable: Collection[str] = (),
        link: Link = None,
        kind: str = CLAIM,
    ) -> None:
        self.policy = policy
        self._kind = kind
        self.arguments = Arguments(function)
        self._owner = owner
        self._clock = clock
        self.maker = KeyMaker(key, self.arguments.signature)
        self.stable = tuple(stable)
        self._watch = Watch(policy.operation, self.maker, stable)
        self._link = KeyMaker(link, self.arguments.signature) if link else None
        self._ignore = _ignored(policy.ignore, self.arguments)

    def of(self, policy: Policy) -> Asking:
        """The same for another tenant's policy."""
        view = copy.copy(self)
        view.policy = policy
        return view

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return self.maker.make(self.arguments.bind(args, kwargs))

    def address(self, key: str) -> Address:
        return address_of(self.policy.tenant, self.policy.operation, key, self._kind)

    def ask(self, arguments: dict[str, Any], *, retry: bool = False) -> Ask:
        """Everything that can be refused is refused here, before anything is written."""
        key = self.maker.make(arguments)
        if self._watch.is_on:
            self._watch.look(arguments, key, self._clock.now(), stacklevel=6)
        at = self.address(key)
        return Ask(
            at,
            self.policy.operation,
            key,
            self._owner(),
            self.policy.lease,
            self.policy.tenant,
            fingerprint(arguments, self._ignore),
            run_id(at.space),
            self._link.make(arguments) if self._link else "",
            self.policy.repeat,
            retry,
            self.policy.where,
        )


def _ignored(declared: tuple[str, ...], arguments: Arguments) -> tuple[str, ...]:
    """A name that no argument has would be accepted and do nothing."""
    for name in declared:
        if name.partition(".")[0] not in arguments.signature.parameters:
            raise Misuse(
                f"ignore has {name!r}, but the function takes ({', '.join(arguments.signature.parameters)}); "
                "name one of them, or a field in one."
            )
    receiver = arguments.receiver
    return (*declared, receiver) if receiver else declared
