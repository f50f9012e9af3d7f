"""What an app offers to senders of webhooks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, MutableMapping
from inspect import iscoroutinefunction
from typing import Any

from msgspec import structs

from ..claims.named import refuse_bare
from ..claims.policy import Duration, make_policy
from ..drive import Operation, await_, block
from ..errors import Misuse
from ..flows.flow import Flow
from ..flows.parts import Parts
from ..keys.duration import seconds
from ..keys.key import is_blank
from .admit import admit
from .envelope import Envelope, envelope
from .hook import Hook, OnFailed, Secrets, checked, operation_of
from .horizon import warn_if_forgotten_early
from .redact import read_paths
from .reply import Reply
from .source import Source
from .sources.catalogue import find_source

__all__ = ["DoorApi"]

LEASE = 15.0  # an admission takes milliseconds; a sender's next try should not find a dead one's claim


class DoorApi:
    """The part of an app that is about webhooks."""

    parts: Parts
    hooks: MutableMapping[str, Hook]

    def webhook(
        self,
        source: str | Source,
        *,
        secret: str | Collection[str] | Secrets = (),
        start: Any = None,
        name: str | None = None,
        wait: Duration | None = None,
        keep: Duration = "30d",
        lease: Duration = LEASE,
        on_failed: OnFailed = "retry",
        redact: Collection[str] = (),
        **options: Any,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Take events of a sender in at /hooks/NAME: each is claimed under its id, then starts a run of `start`.

        `secret` is one secret, several while they are rotated, or `env("NAME")`. As a decorator it takes the function
        that makes what the flow is given from an event's payload (None from it: nothing to do), or, without `start`,
        the flow itself. The answer does not wait for the run unless `wait` says for how long. `lease` is how long a
        redelivery is put off when the process that was taking the event in has died.
        """
        refuse_bare(source, "webhook", "a source", '"stripe", secret=env("STRIPE_SECRET")')
        read_paths(redact)
        known = find_source(source, **options) if isinstance(source, str) else source
        title = name or known.name
        policy = make_policy(operation_of(title), tenant=self.parts.tenant, repeat="safe", lease=lease, keep=keep)
        warn_if_forgotten_early(known, policy.life.keep, name=title)
        span = None if wait is None else seconds(wait, name="wait")
        declared = Hook(
            title, known, _secrets(secret, known), _NOBODY, policy, None, span, checked(on_failed), tuple(redact)
        )  # fmt: skip
        if start is not None:
            self._add_hook(structs.replace(declared, flow=_flow_of(start)))

        def declare(function: Callable[..., Any]) -> Callable[..., Any]:
            flow = getattr(function, "flow", None)
            if start is None:
                self._add_hook(structs.replace(declared, flow=_flow_of(function)))
            elif isinstance(flow, Flow):
                raise Misuse(f"{title} has start= already; decorate the function that makes what the flow is given.")
            elif iscoroutinefunction(function):  # nobody would await it, and every event would be kept aside
                raise Misuse(f"{title} is given an async function; make it a plain one: what waits is the flow's work.")
            else:
                self.hooks[title] = structs.replace(declared, flow=_flow_of(start), make=function)
            return function

        return declare

    def receive(
        self, name: str, body: bytes, headers: Iterable[tuple[str, str]], *, url: str = "", method: str = "POST"
    ) -> Reply:  # fmt: skip
        """A delivery that came in at an endpoint of your own, and the answer to give."""
        return block(self._admission(name, body, headers, url, method))

    async def receiving(
        self, name: str, body: bytes, headers: Iterable[tuple[str, str]], *, url: str = "", method: str = "POST"
    ) -> Reply:  # fmt: skip
        """The same, awaited."""
        return await await_(self._admission(name, body, headers, url, method))

    def admit(self, letter: Envelope) -> Operation[Reply]:
        """What servers call."""
        return admit(self.parts, self.hooks.get(letter.source), letter)

    def _admission(
        self, name: str, body: bytes, headers: Iterable[tuple[str, str]], url: str, method: str
    ) -> Operation[Reply]:  # fmt: skip
        now = self.parts.clock.now()
        return self.admit(
            envelope(name, body, headers, tenant=self.parts.tenant, received_at=now, url=url, method=method)
        )

    def _add_hook(self, hook: Hook) -> None:
        known = self.hooks.get(hook.name)
        if known is not None and known.flow.name != hook.flow.name:
            raise Misuse(
                f"{known.flow.name} and {hook.flow.name} are both started by the webhook "
                f'"{hook.name}"; give one of them another name=.'
            )
        self.hooks[hook.name] = hook


_NOBODY: Any = None  # until the decorator says which flow


def _flow_of(start: Any) -> Flow:
    flow = getattr(start, "flow", None)
    if not isinstance(flow, Flow):
        raise Misuse("app.webhook needs a flow to start: give start=, a function under @app.flow, or decorate one.")
    return flow


def _current(ask: Secrets) -> tuple[str, ...]:
    """What a function gives. Of one text, each letter would be a secret; and spaces are none."""
    found = ask()
    return tuple(one for one in ((found,) if isinstance(found, str) else found) if not is_blank(one))


def _secrets(secret: str | Collection[str] | Secrets, source: Source) -> Secrets:
    if callable(secret):
        return lambda: _current(secret)
    given = (secret,) if isinstance(secret, str) else tuple(secret or ())
    if not all(isinstance(one, str) for one in given):  # of bytes, each would be a number
        raise Misuse(f"The secret of {source.name} is not text; give a str, several, or env(…).")
    if source.signed and not all(given or [""]):
        raise Misuse(f'{source.name} signs what it sends; give its secret: secret=env("{source.name.upper()}_SECRET").')
    if any(is_blank(one) for one in given):  # everybody can sign with spaces
        raise Misuse(f"A secret of {source.name} is blank; copy it again from the sender, or leave it out.")
    return lambda: given
