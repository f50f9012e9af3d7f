"""App methods that declare the steps of flows, at import time: step, effect, transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from ..claims.error_classification import NotDoneErrors, as_not_done
from ..claims.policy import Duration
from ..effects.base import Effect
from ..effects.repeat import NEVER, TRANSACTION, Repeat, Retry, as_retry, declare
from ..flows.engine.decisions import StepPlan
from ..flows.runtime import Runtime
from ..flows.step import Step, StepFunction, external_maker
from ..flows.transaction import Transaction, joining
from ..keys.duration import seconds
from .functions import EffectDecorator, undo_step, wrapped_step

__all__ = ["StepDeclarations"]


P = ParamSpec("P")
R = TypeVar("R")


class StepDeclarations:
    """The methods of an app that make functions steps."""

    runtime: Runtime
    steps: list[Step]
    transactions: list[Step]

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
        """Make a function a recorded step of the flows that call it. Outside of a flow it is called as it is.

        Args:
            repeat: How the step may be repeated when its outcome is unknown; by default never.
            retry: How often, and after which pauses, a clean failure is tried again.
            undo: The function or step that compensates it.
            timeout: How long one attempt may take.
            name: The step's name in the ledger; by default the function's own.
            id: A template or function that tells calls in a loop apart.
            external: A template for the id that an external system gave, over `result` and the arguments.
            not_done: Exceptions by which this step says that nothing was done.
        """
        limit = None if timeout is None else seconds(timeout, name="timeout")
        plan = StepPlan(declare(repeat), as_retry(retry), limit, as_not_done(not_done))

        def declare_step(function: Callable[..., Any]) -> Any:
            step = Step(function, plan, name=name, own_id=id, undo=undo_step(undo), external=external_maker(external))
            self.steps.append(step)
            return wrapped_step(step)

        return declare_step if function is None else declare_step(function)

    @overload
    def effect(self, function: Callable[P, Effect[R]], /) -> StepFunction[P, R]: ...

    @overload
    def effect(
        self,
        /,
        *,
        retry: Retry | None = ...,
        undo: Callable[..., Any] | None = ...,
        timeout: Duration | None = ...,
        name: str | None = ...,
        id: str | Callable[..., str] | None = ...,
        external: str | None = ...,
    ) -> EffectDecorator: ...

    def effect(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        retry: Retry | None = None,
        undo: Callable[..., Any] | None = None,
        timeout: Duration | None = None,
        name: str | None = None,
        id: str | Callable[..., str] | None = None,  # noqa: A002 - the word that users know
        external: str | None = None,
    ) -> Any:
        """Make a function that describes an effect a recorded step, which performs it.

        The function returns what a block makes (`http.post(…)`, `sql.upsert(…)`) and does nothing itself. How the step
        may be repeated follows from the effect, before anything is sent. Outside of a flow it is performed as it is.

        Args:
            retry: How often, and after which pauses, a clean failure is tried again.
            undo: The function, step or effect that compensates it.
            timeout: How long one attempt may take, beside the effect's own limit.
            name: The step's name in the ledger; by default the function's own.
            id: A template or function that tells calls in a loop apart.
            external: A template for the id that an external system gave, over `result` and the arguments.
        """
        from ..flows.effect_step import EffectStep

        limit = None if timeout is None else seconds(timeout, name="timeout")

        def declare_effect(function: Callable[..., Any]) -> Any:
            step = EffectStep(
                function,
                self.runtime,
                retry=retry,
                timeout=limit,
                name=name,
                own_id=id,
                undo=undo_step(undo),
                external=external_maker(external),
            )
            self.steps.append(step)
            return wrapped_step(step)

        return declare_effect if function is None else declare_effect(function)

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
        """Make a function a step in the ledger's own SQL database: its writes and its ledger entry commit together.

        The function's first parameter is the connection, in a transaction that is committed when it returns; callers
        leave it out.

        Args:
            connect: Makes the connections: a function, a SQLAlchemy engine or sessionmaker, or a pool.
            retry: How often, and after which pauses, a clean failure is tried again.
            undo: The function or step that compensates it.
            timeout: When the connection is cut, by default after ten minutes. What was not committed is rolled back;
                of a commit under way, the ledger tells whether it landed.
            name: The step's name in the ledger; by default the function's own.
            id: A template or function that tells calls in a loop apart.
            external: A template for the id that an external system gave, over `result` and the arguments.
        """
        joining(self.runtime.store)
        limit = None if timeout is None else seconds(timeout, name="timeout")
        plan = StepPlan(TRANSACTION, as_retry(retry))

        def declare_transaction(function: Callable[..., Any]) -> Any:
            transaction = Transaction(lambda: self.runtime.store, function, connect, limit)
            step = Step(
                transaction.plain(),
                plan,
                name=name,
                own_id=id,
                undo=undo_step(undo),
                external=external_maker(external),
                transaction=transaction,
            )
            self.transactions.append(step)
            return wrapped_step(step)

        return declare_transaction if function is None else declare_transaction(function)
