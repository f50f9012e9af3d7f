"""What is written at import time: once, flow, step, transaction, classify."""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload
from uuid import UUID, uuid4

from ..claims.claim import RUN, address_of
from ..claims.error_classification import Judge, NotDoneErrors, Verdict, as_not_done
from ..claims.policy import DEFAULT_KEEP, DEFAULT_LEASE, Duration, OnDuplicate, make_policy
from ..claims.request import Link, operation_name, refuse_bare
from ..claims.results import ResultType
from ..claims.run_ids import is_short_id
from ..errors import Misuse
from ..flows.calls import call, start_function, start_many_function
from ..flows.engine.context import (
    correlation,
    current_attempt,
    current_session,
    giving,
    inside_flow,
    is_on_loop,
    plain_session,
)
from ..flows.engine.decisions import StepPlan
from ..flows.engine.guarded_calls import guarded_wrapper
from ..flows.engine.session import recorded_value
from ..flows.engine.unawaited import as_coroutine_function, driven, noted
from ..flows.flow import Flow, Priority, rank_of
from ..flows.handle import AsyncRunHandle, AttachedHandle, Handle, RunHandle
from ..flows.limits import make_limits
from ..flows.ordering.declaration import By, OrderFields
from ..flows.ordering.ordered_runs import Ordering, make_asking, one_per_object
from ..flows.repeat import DEFAULT_RETRY, NEVER, TRANSACTION, Repeat, Retry, as_retry, declare
from ..flows.runtime import Runtime, own_run
from ..flows.step import Step, StepFunction, external_maker
from ..flows.transaction import Transaction, joining
from ..flows.waits.waiting import sleep
from ..keys import validate_key
from ..keys.duration import seconds
from ..operations import Operation, await_, block
from ..records import Address

__all__ = ["AsyncFlowFunction", "FlowApi", "FlowDecorator", "FlowFunction", "TransactionApi"]


P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class FlowFunction(Protocol[P, R_co]):
    """What `@app.flow` leaves in place of a function."""

    flow: Flow

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    @overload
    def start(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle[R_co]: ...

    @overload
    def start(self, *args: Any, delay: Duration, **kwargs: Any) -> RunHandle[R_co]:
        """Leave it to a worker; with `delay`, not before that time has gone by."""

    def start_many(self, items: Iterable[Any], *, delay: Duration = ...) -> Sequence[RunHandle[R_co]]:
        """Leave a run for each item to workers: an item for a single parameter, otherwise a dict or a tuple of them."""

    def retry(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run again what failed for good; what is done stays done."""

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The key of these arguments."""


class AsyncFlowFunction(Protocol[P, R_co]):
    """The same of an `async def`: all but `key` is awaited."""

    flow: Flow

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...

    @overload
    def start(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, AsyncRunHandle[R_co]]: ...

    @overload
    def start(self, *args: Any, delay: Duration, **kwargs: Any) -> Coroutine[Any, Any, AsyncRunHandle[R_co]]:
        """Leave it to a worker; with `delay`, not before that time has gone by."""

    def start_many(
        self, items: Iterable[Any], *, delay: Duration = ...
    ) -> Coroutine[Any, Any, Sequence[AsyncRunHandle[R_co]]]:
        """Leave a run for each item to workers: an item for a single parameter, otherwise a dict or a tuple of them."""

    def retry(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """Run again what failed for good; what is done stays done."""

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The key of these arguments."""


class FlowDecorator(Protocol):
    """What `@app.flow(…)` is: it takes `def` and `async def` alike."""

    @overload  # the first that fits counts
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncFlowFunction[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> FlowFunction[P, R]: ...


class FlowApi:
    """The part of an app that is about flows."""

    parts: Runtime
    flows: MutableMapping[str, Flow]
    steps: list[Step]

    # -- declaring -------------------------------------------------------------------------------

    def flow(
        self,
        key: str | Callable[..., str],
        *,
        name: str | None = None,
        version: str = "1",
        accepts: Collection[str] = (),
        on_duplicate: OnDuplicate = "return_prior",
        keep: Duration = DEFAULT_KEEP,
        keep_result: Duration | None = None,
        keep_history: Duration | None = None,
        keep_failed: Duration | None = None,
        lease: Duration = DEFAULT_LEASE,
        ignore: Collection[str] = (),
        stable: Collection[str] = (),
        link: Link = None,
        limit: int | None = None,
        limit_per: Mapping[str, int] | None = None,
        rate: str | None = None,
        priority: Priority = "normal",
        order: By | None = None,
    ) -> FlowDecorator:
        """A function whose work is ledgered: called twice with one key, it happens once, step by step.

        `keep` is how long the key is known; `keep_history` how long its input, steps and result are. `limit` is how
        many runs may be under way at once, `limit_per` the same per key (`{"customer:{order[customer]}": 1}`), `rate`
        how many may begin in a time ("100/m"); of what is due, workers take flows of a higher `priority` first.
        `order=by(…)`: of one object, only newer versions are applied.
        """
        refuse_bare(key, "flow")

        def declare_flow(function: Callable[..., Any]) -> Any:
            called = operation_name(function, name, "flow")
            if not callable(function):
                raise Misuse('@app.flow needs a key; write it as @app.flow(key="order:{order[id]}").')
            policy = make_policy(
                called,
                tenant=self.parts.tenant,
                on_duplicate=on_duplicate,
                lease=lease,
                keep=keep,
                keep_result=_history(keep_result, keep_history),
                keep_failed=keep_failed,
                ignore=ignore,
                where=self.parts.where,
            )
            places = None if order is None else OrderFields(order, inspect.signature(function))
            asking = make_asking(
                function,
                policy,
                places,
                key=key,
                owner=self.parts.owner,
                clock=self.parts.clock,
                stable=stable,
                link=link,
                kind=RUN,
            )
            per = one_per_object(limit_per, order)
            limits = make_limits(policy.operation, policy.lease, asking.arguments.signature, limit, per, rate)
            flow = Flow(
                function,
                self.parts,
                policy,
                asking,
                version=version,
                accepts=tuple(accepts),
                limits=limits,
                rank=rank_of(priority),
                order=None if places is None else Ordering(policy.operation, places),
            )
            self._register_flow(flow)
            return _wrapped_flow(flow)

        return declare_flow

    @overload
    def step(self, function: Callable[P, R], /) -> StepFunction[P, R]: ...

    @overload
    def step(
        self,
        /,
        *,
        repeat: Repeat = ...,
        retry: Retry | None = ...,
        undo: Callable[..., Any] | None = ...,
        timeout: Duration | None = ...,
        name: str | None = ...,
        id: str | Callable[..., str] | None = ...,
        external: str | None = ...,
        not_done: NotDoneErrors = ...,
    ) -> Callable[[Callable[P, R]], StepFunction[P, R]]: ...

    def step(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        repeat: Repeat = NEVER,
        retry: Retry | None = None,
        undo: Callable[..., Any] | None = None,
        timeout: Duration | None = None,
        name: str | None = None,
        id: str | Callable[..., str] | None = None,  # noqa: A002 - the word that users know
        external: str | None = None,
        not_done: NotDoneErrors = (),
    ) -> Any:
        """A ledgered part of a flow. `repeat` says how it may be repeated; undeclared, it never is blindly.

        `undo` names its compensation; `id` tells calls in a loop apart; `external` is a template for the id that
        the outside gave, over `result` and the arguments; `not_done` names the exceptions by which this step says that
        nothing was done. Outside a flow it runs plainly.
        """
        limit = None if timeout is None else seconds(timeout, name="timeout")
        plan = StepPlan(declare(repeat), as_retry(retry), limit, as_not_done(not_done))

        def declare_step(function: Callable[..., Any]) -> Any:
            step = Step(function, plan, name=name, own_id=id, undo=undo_step(undo), external=external_maker(external))
            self.steps.append(step)
            return wrapped_step(step)

        return declare_step if function is None else declare_step(function)

    @overload
    def classify(self, error: type[BaseException], verdict: Verdict | Judge) -> None: ...

    @overload
    def classify(self, *, not_done: NotDoneErrors) -> None: ...

    def classify(
        self,
        error: type[BaseException] | None = None,
        verdict: Verdict | Judge | None = None,
        *,
        not_done: NotDoneErrors = (),
    ) -> None:
        """Say what an exception of your client means: "clean" (nothing happened), "ambiguous", or "other".

        `app.classify(not_done=(CardDeclined, OutOfStock))` is the same as "clean" for each. It counts for the steps,
        guarded functions and claims of this app; `not_done=` of one of them counts for that one alone.
        """
        if (error is None) != (verdict is None) or (error is None and not not_done):
            raise Misuse('Say app.classify(TheirError, "clean"), or app.classify(not_done=(TheirError,)).')
        for kind in as_not_done(not_done):
            self.parts.verdicts.add(kind, "clean")
        if error is not None and verdict is not None:
            self.parts.verdicts.add(error, verdict)

    def _register_flow(self, flow: Flow) -> None:
        raise NotImplementedError

    # -- in a flow -------------------------------------------------------------------------------

    def effect_key(self) -> str:
        """The key to send along with an effect: the same for every attempt at this step, in every process."""
        attempt = current_attempt()
        if attempt is None:
            raise Misuse(
                "app.effect_key() belongs to a step of a run; call it inside a function under @app.step, and call the "
                "step from a flow."
            )
        return attempt.effect_key

    def correlation(self) -> str:
        """The id that this event's log lines, runs and outgoing calls have in common: send it along with calls."""
        return correlation()

    def now(self) -> datetime:
        """The time, the same in a replay."""
        session = current_session()

        def draw() -> datetime:
            return datetime.fromtimestamp(self.parts.clock.now(), UTC)

        return draw() if session is None else recorded_value(session, "now", datetime, draw)

    def uuid(self) -> UUID:
        """A random id, the same in a replay."""
        session = current_session()
        return uuid4() if session is None else recorded_value(session, "uuid", UUID, uuid4)

    def random(self) -> float:
        """A number between 0 and 1, the same in a replay."""
        session = current_session()
        return random.random() if session is None else recorded_value(session, "random", float, random.random)  # noqa: S311

    def sleep(self, duration: Duration) -> Awaitable[None]:
        """Go on after this long. Nothing is held meanwhile. Awaited in an `async def` flow; in a `def` flow, done."""
        session = inside_flow("app.sleep")
        waits: Awaitable[None] = session.do(sleep(session, seconds(duration, name="sleep", positive=False)))
        return waits

    # -- from outside ----------------------------------------------------------------------------

    def correlate(self, correlation: str) -> AbstractContextManager[None]:
        """`with app.correlate(request_id):` gives runs that are called or started inside this correlation id."""
        return giving(correlation)

    def attach(self, run: str | None = None, *, flow: str | None = None, key: str | None = None) -> AttachedHandle:
        """A handle on a run of any process: by its id, or by flow and key. Await it where you must not block.

        On an event loop, an id is looked up when the handle is awaited, or first used.
        """
        tenant = self.parts.tenant
        if run is not None and is_short_id(run) and is_on_loop():
            return AttachedHandle(lambda: self._look_up(tenant, run), run)
        if run is not None:
            at = block(own_run(self.parts.store, tenant, run))
        elif flow is not None and key is not None:
            at = address_of(tenant, flow, validate_key(key), RUN)
        else:
            raise Misuse("app.attach needs the id of a run, or flow= and key=.")
        return AttachedHandle(self._attached(at))

    def _look_up(self, tenant: str, run: str) -> Operation[Handle]:
        return self._attached((yield from own_run(self.parts.store, tenant, run)))

    def _attached(self, at: Address) -> Handle:
        known = self.flows.get(at.space.split("/", 2)[1])
        results = known.results if known else ResultType(_plain, "run")
        return Handle(self.parts, at, results)


def _history(result: Duration | None, history: Duration | None) -> Duration | None:
    """A run's result is part of its history: they go together."""
    if result is not None and history is not None:
        raise Misuse("keep_result and keep_history mean the same for a flow; give keep_history alone.")
    return result if history is None else history


def _plain() -> object:
    """Of a flow that is not declared here, results come back as plain JSON."""


def undo_step(undo: Callable[..., Any] | None) -> Step | None:
    """An undo that is a step keeps its own declaration; a plain function is never repeated blindly."""
    if undo is None:
        return None
    declared = getattr(undo, "step", None)
    return declared if isinstance(declared, Step) else Step(undo, StepPlan(NEVER, DEFAULT_RETRY), name="undo")


def wrapped_step(step: Step) -> Any:
    function = step.function
    if step.is_async:

        async def work(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            session = current_session()
            if session is None:
                return await function(*args, **kwargs)
            return await await_(session.step(step, args, kwargs))

        @as_coroutine_function
        @functools.wraps(function)
        def awaiting(*args: Any, **kwargs: Any) -> Any:
            return noted(step.name, lambda: work(args, kwargs), names=(step.name,))

        awaiting.step = step  # type: ignore[attr-defined]
        return awaiting

    @functools.wraps(function)
    def blocking(*args: Any, **kwargs: Any) -> Any:
        session = plain_session(step.name)
        if session is None:
            return function(*args, **kwargs)
        return block(session.step(step, args, kwargs))

    blocking.step = step  # type: ignore[attr-defined]
    return blocking


def _wrapped_flow(flow: Flow) -> Any:
    wrapper = guarded_wrapper(flow.function, flow.name, _key_function(flow), lambda *given: call(flow.here(), *given))
    return _with_extras(wrapper, flow)


def _key_function(flow: Flow) -> Callable[..., str]:
    @functools.wraps(flow.function)
    def key(*args: Any, **kwargs: Any) -> str:
        return flow.key(args, kwargs)

    return key


def _with_extras(wrapper: Any, flow: Flow) -> Any:
    wrapper.flow = flow
    wrapper.start = start_function(flow)
    wrapper.start_many = start_many_function(flow)
    retry = f"{flow.name}.retry"
    wrapper.retry = lambda *args, **kwargs: driven(flow.drive, retry, call(flow.here(), args, kwargs, retry=True))
    wrapper.key = lambda *args, **kwargs: flow.key(args, kwargs)
    return wrapper


class TransactionApi:
    """The part of an app that is about the user's own database."""

    parts: Runtime

    @overload
    def transaction(self, function: Callable[Concatenate[Any, P], R], /) -> StepFunction[P, R]: ...

    @overload
    def transaction(
        self,
        /,
        *,
        connect: Any = ...,
        retry: Retry | None = ...,
        undo: Callable[..., Any] | None = ...,
        timeout: Duration | None = ...,
        name: str | None = ...,
        id: str | Callable[..., str] | None = ...,
        external: str | None = ...,
    ) -> Callable[[Callable[Concatenate[Any, P], R]], StepFunction[P, R]]: ...

    def transaction(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        connect: Any = None,
        retry: Retry | None = None,
        undo: Callable[..., Any] | None = None,
        timeout: Duration | None = None,
        name: str | None = None,
        id: str | Callable[..., str] | None = None,  # noqa: A002 - the word that users know
        external: str | None = None,
    ) -> Any:
        """A step in the ledger's own SQL database: what it writes and its ledger entry commit together, or not at all.

        The function's first parameter is the connection, in a transaction that is committed when it returns; callers
        leave it out. `connect` makes the connections: a function, a SQLAlchemy engine or sessionmaker, a pool.
        When `timeout` is over (ten minutes, if none is given), the connection is cut: what was not committed is rolled
        back, and of a commit under way the ledger tells whether it landed.
        """
        joining(self.parts.store)
        limit = None if timeout is None else seconds(timeout, name="timeout")
        plan = StepPlan(TRANSACTION, as_retry(retry))

        def declare_transaction(function: Callable[..., Any]) -> Any:
            transaction = Transaction(lambda: self.parts.store, function, connect, limit)
            step = Step(
                transaction.plain(),
                plan,
                name=name,
                own_id=id,
                undo=undo_step(undo),
                external=external_maker(external),
                transaction=transaction,
            )
            return wrapped_step(step)

        return declare_transaction if function is None else declare_transaction(function)
