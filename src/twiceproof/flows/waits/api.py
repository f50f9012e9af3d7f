"""What an app offers to those who wait and to those who are waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

from ...claims.claim import NO_RESULT, space_of, validate_name
from ...claims.policy import Duration
from ...drive import block
from ...errors import Misuse
from ...keys import validate_key
from ...keys.duration import seconds
from ...keys.fingerprint import digest
from ...records import Address
from ..context import current_attempt, inside_flow, session_var
from ..parts import Parts
from ..retry import Retry
from ..tenancy import own_approval
from ..unawaited import StrOrAwaitable
from .approval import Approval, Decided, DecisionOrAwaitable, request_address
from .approvals import approve, decide, open_approvals
from .arrivals import KIND, Delivered, deliver, packed
from .callbacks import callback_url, deliver_by_token
from .links import Link, draw_link, link_url
from .remote import remote
from .waiting import wait_for, wait_name

__all__ = ["WaitApi"]

DEFAULTS: dict[str | None, bool | None] = {None: None, "approve": True, "reject": False}
NOTHING: Any = object()  # no default was given, as opposed to None
LONGEST_NOTE = 2_000


class WaitApi:
    """The part of an app that is about waits. In an `async def` flow, what is called in its body is awaited."""

    parts: Parts

    # -- in a flow -------------------------------------------------------------------------------

    def wait_for(self, name: str, *, timeout: Duration | None = None, default: Any = NOTHING) -> Any:
        """Park the run until something arrives under this name; its payload. Holds nothing meanwhile.

        After `timeout`, `default` is returned if there is one; otherwise `WaitTimedOut` is raised. The payload is what
        came in as JSON: annotate what you make of it.
        """
        session = inside_flow("app.wait_for")
        span = _span(timeout, default is not NOTHING)
        otherwise = NO_RESULT if default is NOTHING else packed(default, "default=")
        return session.do(wait_for(session, name, span, otherwise), names=("wait",))

    def callback_url(self, name: str) -> StrOrAwaitable:
        """The URL whose call ends `app.wait_for(name)`: the same in a replay. Whoever knows it can end the wait."""
        session = inside_flow("app.callback_url")
        return cast(StrOrAwaitable, session.do(callback_url(session, name), names=("callback",)))

    def approve(
        self, name: str, *, show: Any = None, timeout: Duration | None = None,
        default: Literal["approve", "reject"] | None = None, requester: str = "",
    ) -> DecisionOrAwaitable:  # fmt: skip
        """Park the run until somebody has approved what is shown; the `Decision`. A no raises `Rejected`.

        `requester` is who asks: they cannot approve it themselves. Left out, it is who started the run, if known.
        """
        session = inside_flow("app.approve")
        if default not in DEFAULTS:
            raise Misuse(f'default={default!r} is no decision; say "approve", "reject", or leave it out.')
        span, shown = _span(timeout, default is not None), packed(show, "show=")
        who = requester and validate_key(requester)
        work = approve(session, name, shown, digest(show), span, DEFAULTS[default], who)
        return cast(DecisionOrAwaitable, session.do(work))

    def approval_url(self, name: str, *, show: Any = None, to: str = "", valid: Duration = "7d") -> str:
        """A page where one person can decide about `app.approve(name, show=…)`: for a mail or a message.

        Called inside a step, because each call makes a new link, which is kept nowhere: only its hash is. `show` is
        what the approval will show, word for word; `to` is whose decision it will be.
        """
        attempt, session = current_attempt(), session_var.get()
        if attempt is None or session is None:
            raise Misuse(
                "app.approval_url was not called from a step; call it inside a function under @app.step, where the "
                "link is sent."
            )
        who = to and validate_key(to)
        link = Link(attempt.space, validate_key(name), session.work.born, digest(show), who)
        token = block(draw_link(self.parts.store, link, seconds(valid, name="valid")))
        return link_url(self.parts.url, token)

    def remote(
        self, *, start: Callable[..., Any], callback: str, timeout: Duration | None = None, retry: Retry | None = None
    ) -> Any:  # fmt: skip
        """Start work elsewhere, once, and wait for its callback: `start(url)` is never repeated blindly.

        `start` may also take `effect_key`. If nobody knows whether it was started, the callback tells; only when
        none has come in time a person is asked.
        """
        session = inside_flow("app.remote")
        work = remote(session, start, callback, _span(timeout), retry or Retry())
        return session.do(work, names=("start", "callback", "wait"))

    # -- from outside ----------------------------------------------------------------------------

    def deliver(self, token: str, payload: Any = None) -> Delivered:
        """What came in at a callback URL, by the token at its end. A second one is told what the first said."""
        raw = packed(payload, "The payload")
        return block(deliver_by_token(self.parts.store, token, raw, mark=self.parts.owner()))

    def deliver_to(self, *, flow: str, key: str, name: str, payload: Any = None) -> Delivered:
        """End a wait by the run's own key: for who has no URL, such as another part of the same program."""
        space = space_of(self.parts.tenant, validate_name("flow", flow), validate_key(key))
        at = Address(space, KIND, wait_name(name))
        return block(deliver(self.parts.store, at, packed(payload, "The payload"), mark=self.parts.owner()))

    def approvals(self, *, flow: str | None = None, limit: int = 1_000) -> list[Approval]:
        """What waits for somebody's word."""
        prefix = f"{self.parts.tenant}/" if flow is None else f"{self.parts.tenant}/{validate_name('flow', flow)}/"
        return block(open_approvals(self.parts.store, prefix, limit))

    def decide(
        self, approval: str, approved: bool, *, by: str, note: str = "", shown: str | None = None
    ) -> Decided:  # fmt: skip
        """Somebody's word about an approval, once. `shown` is the digest of what they saw: another is refused."""
        if not isinstance(approved, bool):
            raise Misuse(f"approved={approved!r} is neither yes nor no; say True or False.")
        own_approval(self.parts.tenant, request_address(approval))
        return block(decide(
            self.parts.store, approval, approved=approved, by=validate_key(by), note=note[:LONGEST_NOTE],
            shown=shown or "", mark=self.parts.owner(),
        ))  # fmt: skip


def _span(timeout: Duration | None, defaulted: bool = False) -> float | None:
    if timeout is None and defaulted:
        raise Misuse("A default is what a time-out answers, and there is none; give a timeout= too.")
    return None if timeout is None else seconds(timeout, name="timeout", positive=False)
