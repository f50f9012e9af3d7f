"""What a flow body calls: sleep, wait_for, approve, gather, each, now, uuid, effect_key, resource."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Concatenate, Literal, TypeVar, cast, overload

from ..claims.claim import NO_RESULT, space_of, validate_name
from ..claims.policy import Duration
from ..errors import Misuse
from ..flows.engine.context import attempt_var, current_attempt, inside_flow, session_var
from ..flows.engine.unawaited import ListOrAwaitable, StrOrAwaitable
from ..flows.parallel.compensate_duplicate import DuplicateEffect, compensate
from ..flows.parallel.each import CONCURRENCY, ItemBatch, ItemDone, ItemFailed, ItemKey, Progress, each, progress_of
from ..flows.parallel.gather import gather
from ..flows.repeat import Retry
from ..flows.resources import Source, awaits, inline, keep
from ..flows.runtime import Runtime, own_approval, own_run
from ..flows.step import Step
from ..flows.waits.approvals import ApprovalLink, approve, decide, draw_link, link_url, open_approvals
from ..flows.waits.callbacks import callback_url, deliver_by_token, remote
from ..flows.waits.records import (
    ARRIVAL_KIND,
    Approval,
    Decided,
    DecisionOrAwaitable,
    Delivered,
    deliver,
    packed,
    request_address,
)
from ..flows.waits.waiting import wait_for, wait_name
from ..keys import validate_key
from ..keys.duration import seconds
from ..keys.fingerprint import digest
from ..operations import Operation, await_, block
from ..records import Address

__all__ = ["BatchApi", "ResourceApi", "WaitApi"]


class ResourceApi:
    """The part of an app that is about resources."""

    parts: Runtime

    def resource(self, data: Source, *, name: str = "", media_type: str = "") -> Any:
        """Put a large value away inside a step, and get a `Resource`: a reference that can be returned and passed on.

        `data` is bytes, text, a `Path` or an open file. It is kept as long as the run is. Awaited in an `async def`
        step. Outside a step the reference carries the value itself.
        """
        session, attempt = session_var.get(), attempt_var.get()
        if session is None or attempt is None:
            return inline(data, name, media_type)
        drive = await_ if awaits(session, attempt) else block
        return drive(keep(session, attempt, data, name, media_type))


# A call that fits two overloads is an awaited one: those come first.
# mypy: disable-error-code="overload-overlap"


A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
R = TypeVar("R")
T = TypeVar("T")
Awaited = Coroutine[Any, Any, R] | Callable[[], Coroutine[Any, Any, R]]


class BatchApi:
    """The part of an app that is about batches."""

    parts: Runtime

    @overload
    def gather(
        self, a: Awaited[A], b: Awaited[B], /, *, limit: int | None = ...
    ) -> Coroutine[Any, Any, tuple[A, B]]: ...

    @overload
    def gather(
        self, a: Awaited[A], b: Awaited[B], c: Awaited[C], /, *, limit: int | None = ...
    ) -> Coroutine[Any, Any, tuple[A, B, C]]: ...

    @overload
    def gather(
        self, a: Awaited[A], b: Awaited[B], c: Awaited[C], d: Awaited[D], /, *, limit: int | None = ...
    ) -> Coroutine[Any, Any, tuple[A, B, C, D]]: ...

    @overload
    def gather(self, *calls: Awaited[R], limit: int | None = ...) -> Coroutine[Any, Any, list[R]]: ...

    @overload
    def gather(self, a: Callable[[], A], b: Callable[[], B], /, *, limit: int | None = ...) -> tuple[A, B]: ...

    @overload
    def gather(
        self, a: Callable[[], A], b: Callable[[], B], c: Callable[[], C], /, *, limit: int | None = ...
    ) -> tuple[A, B, C]: ...

    @overload
    def gather(
        self,
        a: Callable[[], A],
        b: Callable[[], B],
        c: Callable[[], C],
        d: Callable[[], D],
        /,
        *,
        limit: int | None = ...,
    ) -> tuple[A, B, C, D]: ...

    @overload
    def gather(self, *calls: Callable[[], R], limit: int | None = ...) -> list[R]: ...

    def gather(self, *calls: Any, limit: int | None = None) -> Any:
        """Steps and waits beside each other: results in order, when all have ended. At most `limit` at once.

        In a `def` flow pass functions, which run on threads: `app.gather(lambda: pay(a), lambda: ship(b))`. In an
        `async def` flow pass what you would await: `await app.gather(pay(a), ship(b))`. If one waits or fails, the
        others go on to their own ends first. The results are a list; for type checkers, as with `asyncio.gather`, a
        tuple where there are a few of different types.
        """
        session = inside_flow("app.gather")
        return session.do(gather(session, calls, limit))

    @overload
    def each(
        self,
        items: Iterable[T],
        step: Callable[Concatenate[T, ...], Coroutine[Any, Any, R]],
        *args: Any,
        key: ItemKey = ...,
        concurrency: int = ...,
        on_failure: Literal["raise"] = ...,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, list[R]]: ...

    @overload
    def each(
        self,
        items: Iterable[T],
        step: Callable[Concatenate[T, ...], Coroutine[Any, Any, R]],
        *args: Any,
        key: ItemKey = ...,
        concurrency: int = ...,
        on_failure: Literal["collect"],
        **kwargs: Any,
    ) -> Coroutine[Any, Any, list[ItemDone[R] | ItemFailed]]: ...

    @overload
    def each(
        self,
        items: Iterable[T],
        step: Callable[Concatenate[T, ...], R],
        *args: Any,
        key: ItemKey = ...,
        concurrency: int = ...,
        on_failure: Literal["raise"] = ...,
        **kwargs: Any,
    ) -> ListOrAwaitable[R]: ...

    @overload
    def each(
        self,
        items: Iterable[T],
        step: Callable[Concatenate[T, ...], R],
        *args: Any,
        key: ItemKey = ...,
        concurrency: int = ...,
        on_failure: Literal["collect"],
        **kwargs: Any,
    ) -> ListOrAwaitable[ItemDone[R] | ItemFailed]: ...

    def each(
        self,
        items: Iterable[Any],
        step: Any,
        *args: Any,
        key: ItemKey = None,
        concurrency: int = CONCURRENCY,
        on_failure: Literal["raise", "collect"] = "raise",
        **kwargs: Any,
    ) -> Any:
        """`step(item, *args, **kwargs)` for every item, with state per item: only what failed is ever tried again.

        `key` tells items apart: a template over `item` (`"{item[sku]}"`) or a function of it. Returns the results in
        order. Items that fail raise `BatchFailed` when all the others are done; with `on_failure="collect"` the
        result is an `ItemDone` or `ItemFailed` for each. Awaited in an `async def` flow.
        """
        session = inside_flow("app.each")
        if on_failure not in ("raise", "collect"):
            raise Misuse(f'on_failure={on_failure!r} means nothing here; say "raise" or "collect".')
        batch = ItemBatch(step_of(step, "app.each"), list(items), key, args, kwargs)
        work = each(session, batch, concurrency, collect=on_failure == "collect")
        return session.do(work, names=(batch.step.name,))

    def progress(self, run: str) -> Progress:
        """How far a run is, from any process: `{"reserve": {"done": 812, "failed": 3}}`."""
        store = self.parts.store
        return block(progress_of(store, block(own_run(store, self.parts.tenant, run)).space))

    def compensate_duplicate(
        self,
        step: Any,
        *,
        result: Any,
        by: str,
        run: str | None = None,
        flow: str | None = None,
        key: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        note: str = "",
        good_too: bool = False,
        undone: bool | None = None,
    ) -> Any:
        """Undo an effect that happened a second time (two invoices for one order), once, by its receipt.

        `result` is what the step would have returned for the duplicate; its undo is given that, and what it needs of
        `arguments`. The run is named by its id, or by `flow` and `key`. What the run itself recorded is refused.
        Awaited if the undo is an `async def`.
        """
        declared = step_of(step, "app.compensate_duplicate")
        duplicate = DuplicateEffect(declared, result, arguments or {}, by, note, good_too, undone)
        drive = await_ if declared.undo is not None and declared.undo.is_async else block
        return drive(self._compensate(self._space(run, flow, key), duplicate, drive))

    def _compensate(self, found: Operation[str], duplicate: DuplicateEffect, drive: Any) -> Operation[Any]:
        return (yield from compensate(self.parts, (yield from found), duplicate, drive))

    def _space(self, run: str | None, flow: str | None, key: str | None) -> Operation[str]:
        if run is not None:
            return (yield from own_run(self.parts.store, self.parts.tenant, run)).space
        if flow is None or key is None:
            raise Misuse("app.compensate_duplicate needs to know the run: give run=, or flow= and key=.")
        return space_of(self.parts.tenant, flow, validate_key(key))


def step_of(function: Any, what: str) -> Step:
    step = getattr(function, "step", None)
    if not isinstance(step, Step):
        name = getattr(function, "__name__", type(function).__name__)
        raise Misuse(f"{what} needs a step, and {name} is none; put @app.step(repeat=…) above it.")
    return step


DEFAULTS: dict[str | None, bool | None] = {None: None, "approve": True, "reject": False}
NOTHING: Any = object()  # no default was given, as opposed to None
LONGEST_NOTE = 2_000


class WaitApi:
    """The part of an app that is about waits. In an `async def` flow, what is called in its body is awaited."""

    parts: Runtime

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
        self,
        name: str,
        *,
        show: Any = None,
        timeout: Duration | None = None,
        default: Literal["approve", "reject"] | None = None,
        requester: str = "",
    ) -> DecisionOrAwaitable:
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
        link = ApprovalLink(attempt.space, validate_key(name), session.work.born, digest(show), who)
        token = block(draw_link(self.parts.store, link, seconds(valid, name="valid")))
        return link_url(self.parts.url, token)

    def remote(
        self, *, start: Callable[..., Any], callback: str, timeout: Duration | None = None, retry: Retry | None = None
    ) -> Any:
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
        at = Address(space, ARRIVAL_KIND, wait_name(name))
        return block(deliver(self.parts.store, at, packed(payload, "The payload"), mark=self.parts.owner()))

    def approvals(self, *, flow: str | None = None, limit: int = 1_000) -> list[Approval]:
        """What waits for somebody's word."""
        prefix = f"{self.parts.tenant}/" if flow is None else f"{self.parts.tenant}/{validate_name('flow', flow)}/"
        return block(open_approvals(self.parts.store, prefix, limit))

    def decide(self, approval: str, approved: bool, *, by: str, note: str = "", shown: str | None = None) -> Decided:
        """Somebody's word about an approval, once. `shown` is the digest of what they saw: another is refused."""
        if not isinstance(approved, bool):
            raise Misuse(f"approved={approved!r} is neither yes nor no; say True or False.")
        own_approval(self.parts.tenant, request_address(approval))
        return block(
            decide(
                self.parts.store,
                approval,
                approved=approved,
                by=validate_key(by),
                note=note[:LONGEST_NOTE],
                shown=shown or "",
                mark=self.parts.owner(),
            )
        )


def _span(timeout: Duration | None, defaulted: bool = False) -> float | None:
    if timeout is None and defaulted:
        raise Misuse("A default is what a time-out answers, and there is none; give a timeout= too.")
    return None if timeout is None else seconds(timeout, name="timeout", positive=False)
