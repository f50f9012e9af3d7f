"""App methods that declare what is guarded, at import time: once, flow, classify."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, MutableMapping
from typing import Any, ParamSpec, TypeVar, overload

from ..claims.claim import RUN
from ..claims.error_classification import Judge, NotDoneErrors, Verdict, as_not_done
from ..claims.error_messages import one_write_store
from ..claims.once import Guard, Once
from ..claims.policy import (
    DEFAULT_KEEP,
    DEFAULT_LEASE,
    Duration,
    OnDuplicate,
    OnFailure,
    OnLarge,
    Policy,
    make_policy,
)
from ..claims.policy import Repeat as OnceRepeat
from ..claims.request import Link, bound_otherwise, operation_name, place_of, refuse_bare
from ..errors import Misuse
from ..flows.engine.guarded_calls import guard_function
from ..flows.flow import Flow, Priority, rank_of
from ..flows.limits import make_limits
from ..flows.ordering.declaration import By, OrderFields
from ..flows.ordering.ordered_runs import Ordering, make_claim_requests, one_run_per_object
from ..flows.runtime import Runtime
from ..flows.step import Step
from ..settings import Settings
from .functions import FlowDecorator, OnceDecorator, wrapped_flow
from .step_declarations import StepDeclarations

__all__ = ["Declarations"]


P = ParamSpec("P")
R = TypeVar("R")


class Declarations(StepDeclarations):
    """The methods of an app that are called at import time."""

    settings: Settings
    runtime: Runtime
    operations: dict[str, Once]
    flows: MutableMapping[str, Flow]
    steps: list[Step]

    def once(
        self,
        key: str | Callable[..., str],
        *,
        name: str | None = None,
        on_duplicate: OnDuplicate = "return_prior",
        keep: Duration = DEFAULT_KEEP,
        keep_result: Duration | None = None,
        keep_failed: Duration | None = None,
        lease: Duration = DEFAULT_LEASE,
        repeat: OnceRepeat = "never",
        on_failure: OnFailure = "keep",
        large: OnLarge = "spill",
        ignore: Collection[str] = (),
        stable: Collection[str] = (),
        link: Link = None,
        not_done: NotDoneErrors = (),
    ) -> OnceDecorator:
        """Guard a function: of all calls with one key, one does the work, and the others get its result.

        Args:
            key: A template over the arguments (`"shop:order:{order[id]}"`) or a function of them.
            name: The operation's name in the ledger; by default the function's own.
            on_duplicate: What a repeated call gets: the first result ("return_prior"), the same after waiting for a
                call under way ("wait"), or `Duplicate` ("reject").
            keep: How long the key is known after the work has ended.
            keep_result: How long the result is kept, if shorter than the key.
            keep_failed: How long a failure is kept; by default as long as the key.
            lease: How long a process that died keeps its claim. A living one renews it.
            repeat: What the death of a process means, or an error that does not tell whether the work was done:
                "never" parks the claim for review, "safe" runs the work again.
            on_failure: Whether a failure is recorded ("keep") or the key given back ("release").
            large: What happens to a result over 64 KB: kept beside the claim ("spill"), or only its digest ("digest").
            ignore: Arguments, or fields of them, in which repeated calls may differ.
            stable: Parts of the key that stay on every retry, although they look like a time or a random id.
            link: A template or function for a second name of the claim, shown in lists.
            not_done: Exceptions by which this function says that nothing was done.
        """
        refuse_bare(key, "once")

        def guard(function: Callable[..., Any]) -> Any:
            called = operation_name(function, name, "once")
            if not callable(function):  # `@app.once` without parentheses took the function for its key
                raise Misuse('@app.once needs a key; write it as @app.once(key="order:{order[id]}").')
            policy = make_policy(
                called,
                tenant=self.settings.tenant,
                on_duplicate=on_duplicate,
                on_failure=on_failure,
                repeat=repeat,
                large=large,
                lease=lease,
                keep=keep,
                keep_result=keep_result,
                keep_failed=keep_failed,
                ignore=ignore,
                where=self.runtime.where,
                not_done=not_done,
            )
            once = Once(function, self._guard(policy), key=key, owner=self.runtime.owner, stable=stable, link=link)
            self._register(once)
            return guard_function(function, once, self.runtime)

        return guard

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
        """Make a function durable: its steps are recorded, and of all calls with one key one run does the work.

        Args:
            key: A template over the arguments (`"order:{order[id]}"`) or a function of them.
            name: The flow's name in the ledger; by default the function's own.
            version: The version of the code, recorded with each run.
            accepts: Earlier versions whose runs this code can resume.
            on_duplicate: What a repeated call gets: the first result ("return_prior"), the same after waiting for a
                run under way ("wait"), or `Duplicate` ("reject").
            keep: How long the key is known after the run has ended.
            keep_result: The same as `keep_history`.
            keep_history: How long the input, steps and result are kept, if shorter than the key.
            keep_failed: How long a failed run is kept; by default as long as the key.
            lease: How long a process that died keeps its run. A living one renews it.
            ignore: Arguments, or fields of them, in which repeated calls may differ.
            stable: Parts of the key that stay on every retry, although they look like a time or a random id.
            link: A template or function for a second name of the run, shown in lists.
            limit: How many runs may be under way at once.
            limit_per: The same per key (`{"customer:{order[customer]}": 1}`).
            rate: How many runs may begin in a time ("100/m").
            priority: Workers take due runs of flows with a higher priority first.
            order: `by(…)`: only newer versions of an object are applied.
        """
        refuse_bare(key, "flow")

        def declare_flow(function: Callable[..., Any]) -> Any:
            called = operation_name(function, name, "flow")
            if not callable(function):
                raise Misuse('@app.flow needs a key; write it as @app.flow(key="order:{order[id]}").')
            policy = make_policy(
                called,
                tenant=self.runtime.tenant,
                on_duplicate=on_duplicate,
                lease=lease,
                keep=keep,
                keep_result=_history(keep_result, keep_history),
                keep_failed=keep_failed,
                ignore=ignore,
                where=self.runtime.where,
            )
            places = None if order is None else OrderFields(order, inspect.signature(function))
            claim_requests = make_claim_requests(
                function,
                policy,
                places,
                key=key,
                owner=self.runtime.owner,
                clock=self.runtime.clock,
                stable=stable,
                link=link,
                kind=RUN,
            )
            per = one_run_per_object(limit_per, order)
            limits = make_limits(policy.operation, policy.lease, claim_requests.arguments.signature, limit, per, rate)
            flow = Flow(
                function,
                self.runtime,
                policy,
                claim_requests,
                version=version,
                accepts=tuple(accepts),
                limits=limits,
                rank=rank_of(priority),
                order=None if places is None else Ordering(policy.operation, places),
            )
            self._register_flow(flow)
            return wrapped_flow(flow)

        return declare_flow

    @overload
    def classify(
        self, error: type[BaseException], verdict: Verdict | Judge | None = ..., *, retries_itself: bool | None = ...
    ) -> None: ...

    @overload
    def classify(self, *, not_done: NotDoneErrors) -> None: ...

    def classify(
        self,
        error: type[BaseException] | None = None,
        verdict: Verdict | Judge | None = None,
        *,
        not_done: NotDoneErrors = (),
        retries_itself: bool | None = None,
    ) -> None:
        """Declare what an exception says about the work, for all steps, guarded functions and claims of this app.

        Args:
            error: The class of exceptions that this is about.
            verdict: "clean" (nothing happened), "final" (the same, and trying again is useless), "ambiguous" (it may
                have happened), "other", or a function of the exception that returns one of these, or None.
            not_done: Classes of exceptions that are all "clean".
            retries_itself: Whether the client that raises `error` sends a request again by itself. With True, an
                exception that looks clean is ambiguous, because it is only about the last request.
        """
        says = verdict is not None or retries_itself is not None
        if (error is None) == says or (error is None and not not_done):
            raise Misuse(
                'Say app.classify(TheirError, "clean"), app.classify(TheirError, retries_itself=True), or '
                "app.classify(not_done=(TheirError,))."
            )
        for kind in as_not_done(not_done):
            self.runtime.verdicts.add(kind, "clean")
        if error is not None and verdict is not None:
            self.runtime.verdicts.add(error, verdict)
        if error is not None and retries_itself is not None:
            self.runtime.verdicts.add_retrying(error, retries_itself)

    def _guard(self, policy: Policy) -> Guard:
        runtime = self.runtime
        return Guard(runtime.claims, runtime.heartbeat, policy, runtime.verdicts, best_effort=runtime.best_effort)

    def _register(self, once: Once) -> None:
        self._refuse_namesake(once.policy.operation, once.function)
        self.operations[once.policy.operation] = once

    def _register_flow(self, flow: Flow) -> None:
        if self.runtime.store.batch_limit == 1:
            raise one_write_store(f"The flow {flow.name}")
        self._refuse_namesake(flow.name, flow.function)
        self.flows[flow.name] = flow
        self.runtime.lives[flow.name] = flow.policy.life

    def _refuse_namesake(self, name: str, function: Callable[..., Any]) -> None:
        """Refuse a second function under a name: both would share claims and answer each other's duplicates."""
        known: Once | Flow | None = self.flows.get(name) or self.operations.get(name)
        if known is None:
            return
        places = place_of(known.function), place_of(function)
        if places[0] != places[1]:
            raise Misuse(f'{" and ".join(places)} are both called "{name}"; give one of them another name=.')
        if bound := bound_otherwise(known.function, function):
            raise Misuse(
                f'{places[0]} is declared twice under the name "{name}", with another {bound} each time; give each its '
                f'own name, such as name=f"{name}-{{{bound}}}".'
            )


def _history(result: Duration | None, history: Duration | None) -> Duration | None:
    """A run's result is part of its history: they go together."""
    if result is not None and history is not None:
        raise Misuse("keep_result and keep_history mean the same for a flow; give keep_history alone.")
    return result if history is None else history
