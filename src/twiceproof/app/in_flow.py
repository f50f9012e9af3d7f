"""App methods for the body of a flow or a step: sleep, wait_for, approve, gather, each, now, effect_key, resource.

In an `async def` flow, what is called in its body is awaited.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Concatenate, Literal, TypeVar, cast, overload
from uuid import UUID, uuid4

from ..claims.claim import NO_RESULT
from ..claims.policy import Duration
from ..effects.repeat import Retry
from ..errors import Misuse
from ..flows.engine.context import (
    ListOrAwaitable,
    StrOrAwaitable,
    attempt_var,
    correlation,
    current_attempt,
    current_session,
    inside_flow,
    session_var,
)
from ..flows.engine.session import recorded_value
from ..flows.runtime import Runtime
from ..flows.waits.records import DecisionOrAwaitable, encode_payload
from ..keys import validate_key
from ..keys.canonical import digest
from ..keys.duration import seconds
from ..operations import await_, block
from .functions import step_of

if TYPE_CHECKING:
    from ..flows.effect_step import EffectBlocks
    from ..flows.parallel.each import ItemDone, ItemFailed, ItemKey
    from ..flows.resources import ResourceOrAwaitable, Source

__all__ = ["InFlow"]

# A call that fits two overloads is an awaited one: those come first.
# mypy: disable-error-code="overload-overlap"
# ruff: noqa: A002 - `type` is the word that users know


A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
R = TypeVar("R")
T = TypeVar("T")
Job = Callable[..., Any]
AsyncJob = Callable[..., Coroutine[Any, Any, Any]]
Awaited = Coroutine[Any, Any, R] | Callable[[], Coroutine[Any, Any, R]]

DEFAULTS: dict[str | None, bool | None] = {None: None, "approve": True, "reject": False}
NOTHING: Any = object()  # no default was given, as opposed to None


class InFlow:
    """The methods of an app that are called in the body of a flow or a step."""

    runtime: Runtime

    # -- recorded values -------------------------------------------------------------------------

    def effect_key(self) -> str:
        """Return the key to send with an effect: the same for every attempt at this step, in every process."""
        attempt = current_attempt()
        if attempt is None:
            raise Misuse(
                "app.effect_key() belongs to a step of a run; call it inside a function under @app.step, and call the "
                "step from a flow."
            )
        return attempt.effect_key

    @property
    def effects(self) -> EffectBlocks:
        """The ready-made effects, performed where they are called: `app.effects.http.put(…)` in a flow's body.

        Each is a step of its own, named after what it does. Await it in an `async def` flow.
        """
        from ..flows.effect_step import EffectBlocks

        return EffectBlocks(self.runtime)

    def correlation(self) -> str:
        """Return the correlation id of the current run or `app.correlate` block: send it with outgoing calls."""
        return correlation()

    def now(self) -> datetime:
        """Return the current time; the same in a replay."""
        session = current_session()

        def draw() -> datetime:
            return datetime.fromtimestamp(self.runtime.clock.now(), UTC)

        return draw() if session is None else recorded_value(session, "now", datetime, draw)

    def uuid(self) -> UUID:
        """Return a random id; the same in a replay."""
        session = current_session()
        return uuid4() if session is None else recorded_value(session, "uuid", UUID, uuid4)

    def random(self) -> float:
        """Return a random number between 0 and 1; the same in a replay."""
        session = current_session()
        return random.random() if session is None else recorded_value(session, "random", float, random.random)  # noqa: S311

    def sleep(self, duration: Duration) -> Awaitable[None]:
        """Suspend the run for a time. Nothing is held meanwhile. Await it in an `async def` flow.

        Args:
            duration: How long, in seconds or as text ("3d").
        """
        from ..flows.waits.waiting import sleep

        session = inside_flow("app.sleep")
        waits: Awaitable[None] = session.do(sleep(session, seconds(duration, name="sleep", positive=False)))
        return waits

    def resource(self, data: Source, *, name: str = "", media_type: str = "") -> ResourceOrAwaitable:
        """Store a large value inside a step, and return a `Resource`: a reference that can be returned and passed on.

        It is kept as long as the run is. Await it in an `async def` step. Outside of a step the reference carries the
        value itself.

        Args:
            data: Bytes, text, a `Path` or an open file.
            name: A file name for people.
            media_type: Its type, such as "text/csv".
        """
        from ..flows.resources import inline, is_async, keep

        session, attempt = session_var.get(), attempt_var.get()
        if session is None or attempt is None:
            return cast("ResourceOrAwaitable", inline(data, name, media_type))
        drive = await_ if is_async(session, attempt) else block
        return cast("ResourceOrAwaitable", drive(keep(session, attempt, data, name, media_type)))

    # -- several at once -------------------------------------------------------------------------

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
        """Run steps and waits concurrently, and return their results in order, when all have ended.

        If one waits or fails, the others run to their own ends first. The results are a list; for type checkers, as
        with `asyncio.gather`, a tuple where there are a few of different types.

        Args:
            calls: In a `def` flow functions, which run on threads: `app.gather(lambda: pay(a), lambda: ship(b))`. In
                an `async def` flow what you would await: `await app.gather(pay(a), ship(b))`.
            limit: How many run at once.
        """
        from ..flows.parallel.gather import gather

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
        concurrency: int = 8,
        on_failure: Literal["raise", "collect"] = "raise",
        **kwargs: Any,
    ) -> Any:
        """Call `step(item, *args, **kwargs)` for every item, and return the results in order.

        Each item has a state of its own: only items that failed are tried again.

        Args:
            items: What to call the step with, one by one.
            step: A function under @app.step.
            args: Further arguments of the step.
            key: Tells items apart: a template over `item` (`"{item[sku]}"`) or a function of it.
            concurrency: How many items are worked on at once.
            on_failure: "raise" raises `BatchFailed` when all other items are done; "collect" returns an `ItemDone` or
                `ItemFailed` for each.
            kwargs: Further arguments of the step.
        """
        from ..flows.parallel.each import ItemBatch, each

        session = inside_flow("app.each")
        if on_failure not in ("raise", "collect"):
            raise Misuse(f'on_failure={on_failure!r} is not valid; use "raise" or "collect".')
        batch = ItemBatch(step_of(step, "app.each"), list(items), key, args, kwargs)
        work = each(session, batch, concurrency, collect=on_failure == "collect")
        return session.do(work, names=(batch.step.name,))

    # -- waits -----------------------------------------------------------------------------------

    @overload
    def wait_for(self, name: str, *, type: type[T], timeout: Duration | None = ...) -> T: ...

    @overload
    def wait_for(self, name: str, *, type: type[T], timeout: Duration, default: D) -> T | D: ...

    @overload
    def wait_for(self, name: str, *, type: Any = ..., timeout: Duration | None = ..., default: Any = ...) -> Any: ...

    def wait_for(self, name: str, *, type: Any = None, timeout: Duration | None = None, default: Any = NOTHING) -> Any:
        """Suspend the run until a callback arrives under a name, and return its payload. Nothing is held meanwhile.

        Args:
            name: The name of the wait, as `app.callback_url(name)` and `app.deliver_to(name=…)` use it.
            type: The payload's type; by default it is plain JSON. If another payload arrives, the run waits for review.
            timeout: How long to wait. Without a default, `WaitTimedOut` is raised then.
            default: What is returned after `timeout`: None, or a value of the type.
        """
        from ..flows.waits.waiting import PayloadType, wait_for

        session = inside_flow("app.wait_for")
        span, payload = _span(timeout, default is not NOTHING), PayloadType(type)
        otherwise = NO_RESULT if default is NOTHING else payload.encode_default(default)
        return session.do(wait_for(session, name, span, otherwise, payload), names=("wait",))

    @overload
    def waiting_for(self, name: str, *, type: type[T], timeout: Duration | None = ...) -> Coroutine[Any, Any, T]: ...

    @overload
    def waiting_for(self, name: str, *, type: type[T], timeout: Duration, default: D) -> Coroutine[Any, Any, T | D]: ...

    def waiting_for(
        self, name: str, *, type: Any, timeout: Duration | None = None, default: Any = NOTHING
    ) -> Coroutine[Any, Any, Any]:
        """Do the same as `wait_for`, awaited, with the same parameters: for type checkers, in an `async def` flow.

        There, `await app.wait_for(…)` returns the same value, but its type is known only in a `def` flow.
        """
        if inside_flow("app.waiting_for").drive is not await_:
            raise Misuse("app.waiting_for is awaited, and this flow is a def; call app.wait_for.")
        return cast(Coroutine[Any, Any, Any], self.wait_for(name, type=type, timeout=timeout, default=default))

    def callback_url(self, name: str) -> StrOrAwaitable:
        """Return the URL whose call ends `app.wait_for(name)`; the same in a replay. It works without a token.

        Args:
            name: The name of the wait.
        """
        from ..flows.waits.callbacks import callback_url

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
        """Suspend the run until a person approves, and return the `Decision`. A rejection raises `Rejected`.

        Args:
            name: The approval's name within the run.
            show: What the person is shown.
            timeout: How long to wait. Without a default, `WaitTimedOut` is raised then.
            default: The decision after `timeout`.
            requester: Who asks; they cannot approve it themselves. By default who started the run, if known.
        """
        from ..flows.waits.approvals import approve

        session = inside_flow("app.approve")
        if default not in DEFAULTS:
            raise Misuse(f'default={default!r} is no decision; say "approve", "reject", or leave it out.')
        span, shown = _span(timeout, default is not None), encode_payload(show, "show=")
        who = requester and validate_key(requester)
        work = approve(session, name, shown, digest(show), span, DEFAULTS[default], who)
        return cast(DecisionOrAwaitable, session.do(work))

    def approval_url(self, name: str, *, show: Any = None, to: str = "", valid: Duration = "7d") -> str:
        """Return the address of a page where one person can decide about `app.approve(name, show=…)`.

        Call it inside a step, which sends it: each call makes a new link, of which only the hash is stored.

        Args:
            name: The approval's name within the run.
            show: What the approval will show, exactly.
            to: Whose decision it will be.
            valid: How long the link works.
        """
        from ..flows.waits.approvals import ApprovalLink, create_link, link_url

        attempt, session = current_attempt(), session_var.get()
        if attempt is None or session is None:
            raise Misuse(
                "app.approval_url was not called from a step; call it inside a function under @app.step, where the "
                "link is sent."
            )
        who = to and validate_key(to)
        link = ApprovalLink(attempt.space, validate_key(name), session.work.start_id, digest(show), who)
        token = block(create_link(self.runtime.store, link, seconds(valid, name="valid")))
        return link_url(self.runtime.url, token)

    @overload
    def remote(
        self,
        *,
        start: AsyncJob,
        callback: str,
        type: type[T],
        timeout: Duration | None = ...,
        retry: Retry | None = ...,
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def remote(
        self, *, start: Job, callback: str, type: type[T], timeout: Duration | None = ..., retry: Retry | None = ...
    ) -> T: ...

    @overload
    def remote(
        self, *, start: Job, callback: str, type: Any = ..., timeout: Duration | None = ..., retry: Retry | None = ...
    ) -> Any: ...

    def remote(
        self,
        *,
        start: Callable[..., Any],
        callback: str,
        type: Any = None,
        timeout: Duration | None = None,
        retry: Retry | None = None,
    ) -> Any:
        """Start work in another system, once, and wait for its callback.

        If it is unknown whether the work was started, the callback decides; if none comes in time, the run waits for
        review.

        Args:
            start: Starts the work, given the callback's URL, and `effect_key` if it takes one. It is never repeated
                blindly.
            callback: The name of the wait.
            type: The payload's type, as for `wait_for`.
            timeout: How long to wait for the callback.
            retry: How often, and after which pauses, a clean failure to start is tried again.
        """
        from ..flows.waits.callbacks import remote
        from ..flows.waits.waiting import PayloadType

        session = inside_flow("app.remote")
        work = remote(session, start, callback, _span(timeout), retry or Retry(), PayloadType(type))
        return session.do(work, names=("start", "callback", "wait"))


def _span(timeout: Duration | None, defaulted: bool = False) -> float | None:
    if timeout is None and defaulted:
        raise Misuse("A default is what a time-out answers, and there is none; give a timeout= too.")
    return None if timeout is None else seconds(timeout, name="timeout", positive=False)
