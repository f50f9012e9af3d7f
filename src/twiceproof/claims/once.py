"""`@app.once`: a plain function whose work is claimed before it is done."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any, ParamSpec, Protocol, TypeVar

from ..clock import Ids
from ..drive import Operation
from ..errors import Misuse, NotDone
from ..keys import KeyMaker, Watch, fingerprint
from ..records import Address
from .arguments import Arguments
from .claim import address_of, run_id
from .guard import Guard
from .outcomes import TakeOutcome
from .results import ResultType
from .states import Ask

__all__ = ["Link", "Once", "OnceFunction"]

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

Link = str | Callable[..., str] | None


class OnceFunction(Protocol[P, R_co]):
    """What `@app.once` leaves in place of a function. `look` and `retry` of an `async def` are awaited."""

    once: Once

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The key of these arguments."""

    def look(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """What the claim of these arguments is now: an outcome, or None. Writes nothing."""

    def retry(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run again what failed for good: the explicit word that a failure without a verdict needs."""


class Once:
    """One guarded function: how its calls become asks."""

    def __init__(
        self,
        function: Callable[..., Any],
        guard: Guard,
        *,
        key: str | Callable[..., str],
        owner: Ids,
        stable: Collection[str] = (),
        link: Link = None,
    ) -> None:
        _refuse_generators(function)
        self.function = function
        self.guard = guard
        self.policy = guard.policy
        self._owner = owner
        self._arguments = Arguments(function)
        self._maker = KeyMaker(key, self._arguments.signature)
        self._watch = Watch(self.policy.operation, self._maker, stable)
        self._link = KeyMaker(link, self._arguments.signature) if link else None
        self._ignore = _ignored(self.policy.ignore, self._arguments)
        self._results = ResultType(function, self.policy.operation)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, retry: bool = False) -> Operation[Any]:
        ask = self.ask(args, kwargs, retry=retry)
        return self.guard.run(ask, lambda: self._work(args, kwargs), self._results)

    def _work(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = self.function(*args, **kwargs)
        if inspect.iscoroutine(value) and not inspect.iscoroutinefunction(self.function):
            value.close()  # work that has not begun: recorded as done, it would be lost
            raise NotDone(f"{self.policy.operation} is a def that returns a coroutine; guard an `async def` instead.")
        return value

    def look(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation[TakeOutcome | None]:
        """What the claim of these arguments is now."""
        return self.guard.claims.look(self._address(self._maker.make(self._arguments.bind(args, kwargs))))

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return self._maker.make(self._arguments.bind(args, kwargs))

    def ask(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, retry: bool = False) -> Ask:
        """Everything that can be refused is refused here, before anything is written."""
        arguments = self._arguments.bind(args, kwargs)
        key = self._maker.make(arguments)
        self._watch.look(arguments, key, self.guard.claims.clock.now(), stacklevel=5)
        at = self._address(key)
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

    def _address(self, key: str) -> Address:
        return address_of(self.policy.tenant, self.policy.operation, key)


def _refuse_generators(function: Callable[..., Any]) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Misuse(f"{function.__qualname__} is a generator, whose work has no single result; return a list instead.")


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
