"""`@app.transaction`: a step whose effect and ledger entry are one database transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from ...claims.policy import Duration
from ...keys.duration import seconds
from ..api import undo_step, wrapped_step
from ..engine import Plan
from ..external import external_maker
from ..parts import Parts
from ..repeat import TRANSACTION
from ..retry import Retry, as_retry
from ..step import Step, StepFunction
from .transaction import Transaction, joining

__all__ = ["TransactionApi"]

P = ParamSpec("P")
R = TypeVar("R")


class TransactionApi:
    """The part of an app that is about the user's own database."""

    parts: Parts

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
        plan = Plan(TRANSACTION, as_retry(retry))

        def declare_transaction(function: Callable[..., Any]) -> Any:
            transaction = Transaction(lambda: self.parts.store, function, connect, limit)
            step = Step(
                transaction.plain(), plan, name=name, own_id=id, undo=undo_step(undo),
                external=external_maker(external), transaction=transaction,
            )  # fmt: skip
            return wrapped_step(step)

        return declare_transaction if function is None else declare_transaction(function)
