"""A function whose work and whose ledger entry are one database transaction."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from inspect import Parameter
from typing import Any, cast

from msgspec import Struct

from ...drive import Call, Operation, Raised, Returned, await_, block
from ...errors import Misuse, NotDone
from ...records import Conflict, Lost, Write, Written
from ...stores.base import Store
from ...stores.join import Join, JoinedStore, Torn
from ...stores.joins.do import Do
from ...stores.joins.source import Opened, open_from
from .deadline import deadlines

__all__ = ["NEEDS_SQL", "Committed", "InDoubt", "Refused", "TornApart", "Transaction", "joining"]

# The ledger's last words, given what the function returned: batches of one space each, the entry's at last.
Record = Callable[[Any], Sequence[Sequence[Write]]]


LIMIT = 600.0  # seconds, where no timeout= is given: a connection that went silent would be waited for for ever
GRACE = 5.0  # for an attempt whose connection was cut

Act = Callable[[], None]

NEEDS_SQL = "@app.transaction needs the ledger in the user's own SQL database"


class Committed(Struct, frozen=True):
    """Work and entry are there. `written` is None where nothing was to be recorded."""

    value: Any
    written: Written | None


class Refused(Struct, frozen=True):
    """The ledger did not take it: everything was rolled back."""

    conflict: Conflict | Lost


class InDoubt(Struct, frozen=True):
    """No answer came to the commit: the database knows."""

    error: Exception


class TornApart(Struct, frozen=True):
    """The function ended the transaction itself: its work may be there, the entry is not."""


Ran = Committed | Refused | InDoubt | TornApart | Raised


class _Open(Struct, frozen=True):
    """The transaction that the caller is inside of."""

    owner: object
    handle: Any


_open: ContextVar[_Open | None] = ContextVar("twiceproof_transaction", default=None)


def joining(store: Store) -> JoinedStore:
    """The store, if it has transactions of a kind that users have, too."""
    if getattr(store, "joins", None) is not None:
        return cast(JoinedStore, store)
    raise Misuse(
        f"{NEEDS_SQL}, and this store is none; use sqlite:/// or "
        'postgresql://, or @app.step(repeat="keyed") or repeat=check(…) instead.'
    )


def _nothing() -> None:
    """Where nobody waits to take over."""


class _TimeLimit:
    """The time of one attempt. `ring` is called on another thread."""

    def __init__(self, limit: float) -> None:
        self.join: Join | None = None
        self.rang = False
        self._limit = limit

    def ring(self) -> None:
        self.rang = True
        if self.join is not None:
            self.join.cut()

    def error(self) -> TimeoutError:
        return TimeoutError(f"the transaction did not end within {self._limit:g} s, and its connection was cut")

    def told(self, ran: Ran) -> Ran:
        """What went wrong on a connection that was cut went wrong because of that."""
        if not self.rang or not isinstance(ran, Raised | InDoubt) or not isinstance(ran.error, Exception):
            return ran
        error = self.error()
        error.__cause__ = ran.error
        return Raised(error) if isinstance(ran, Raised) else InDoubt(error)


class Transaction:
    """How such a function is run. `connect` makes its connections; None: to the store's own database."""

    def __init__(
        self, store: Callable[[], Store], function: Callable[..., Any], connect: Any, limit: float | None = None
    ) -> None:  # fmt: skip
        self._store = store
        self._function = function
        self._connect = connect
        self._limit = limit
        self._awaited = inspect.iscoroutinefunction(function)
        self.signature = _without_connection(function)

    # -- running ---------------------------------------------------------------------------------

    def attempt(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], record: Record | None, give_up: Act = _nothing
    ) -> Operation[Ran]:  # fmt: skip
        """Open, work, record, commit. What ends with `Raised` was rolled back.

        When its time is over the connection is cut, so that whoever waits on it hears of it. `give_up` is called if it
        goes on all the same, waiting for something else: others may take over, and its commit will be refused.
        """
        store = joining(self._store())
        try:
            dial = functools.partial(store.joins.connect, awaited=self._awaited)
            opened = yield from open_from(dial if self._connect is None else self._connect)
            return (yield from self._on(store, opened, args, kwargs, record, give_up))
        except Torn:
            return TornApart()
        except Misuse:
            raise  # a wrong connection stays wrong
        except Exception as error:  # noqa: BLE001 - the step's policy says what follows
            return Raised(error)

    def _on(
        self,
        store: JoinedStore,
        opened: Opened,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        record: Record | None,
        give_up: Act,
    ) -> Operation[Ran]:
        limit = LIMIT if self._limit is None else self._limit
        time = _TimeLimit(limit)
        with deadlines.after((limit, time.ring), (limit + GRACE, give_up)):
            join: Join | None = None
            try:
                join = time.join = store.join(opened.connection)
                yield from join.begin()
                ran = yield from self._within(join, args, kwargs, record)
            except GeneratorExit:  # thrown away: nothing can be awaited any more
                _drop(join)
                raise
            except BaseException as error:
                yield from _leave(join, opened, broken=time.rang or not isinstance(error, Exception))
                if time.rang and isinstance(error, Exception):
                    raise time.error() from error
                raise
            yield from _leave(join, opened, broken=time.rang or isinstance(ran, InDoubt))
        return time.told(ran)

    def _within(
        self, join: Join, args: tuple[Any, ...], kwargs: dict[str, Any], record: Record | None
    ) -> Operation[Ran]:  # fmt: skip
        """What is not committed when this returns is rolled back by the caller."""
        finding = yield from self._call(join.handle, args, kwargs)
        if isinstance(finding, Raised):
            return Raised(join.explain(finding.error))
        written: Written | None = None
        for batch in record(finding.value) if record is not None else ():
            outcome = yield from join.write(*batch)
            if not isinstance(outcome, Written):
                return Refused(outcome)
            written = outcome
        try:
            yield from join.commit()
        except Exception as error:  # noqa: BLE001 - whatever it is, it does not tell whether the commit landed
            return InDoubt(error)
        return Committed(finding.value, written)

    def _call(self, handle: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation[Returned | Raised]:
        token = _open.set(_Open(self._kind, handle))
        try:
            return (yield from Call(lambda: self._begun(self._function(handle, *args, **kwargs))))
        finally:
            _open.reset(token)

    def _begun(self, value: Any) -> Any:
        if inspect.iscoroutine(value) and not self._awaited:
            value.close()
            raise NotDone(
                f"{self._function.__name__} is a def that returns a coroutine; make it an `async def`.", final=True
            )
        return value

    @property
    def _kind(self) -> tuple[Any, bool]:
        return self._connect, self._awaited

    # -- outside a flow --------------------------------------------------------------------------

    def plain(self) -> Callable[..., Any]:
        """The function without its connection: in a transaction of its own, or in the one around it."""
        function = self._function
        if self._awaited:

            @functools.wraps(function)
            async def awaiting(*args: Any, **kwargs: Any) -> Any:
                return await await_(self._alone(args, kwargs))

            awaiting.__signature__ = self.signature  # type: ignore[attr-defined]
            return awaiting

        @functools.wraps(function)
        def blocking(*args: Any, **kwargs: Any) -> Any:
            return block(self._alone(args, kwargs))

        blocking.__signature__ = self.signature  # type: ignore[attr-defined]
        return blocking

    def _alone(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation[Any]:
        around = _open.get()
        ran: Ran | Returned
        if around is None:
            ran = yield from self.attempt(args, kwargs, None)
        elif around.owner == self._kind:
            ran = yield from self._call(around.handle, args, kwargs)
        else:
            raise Misuse(
                f"{self._function.__name__} was called inside another transaction, on another kind of connection; "
                "give both the same connect=."
            )
        if isinstance(ran, Raised | InDoubt):
            raise ran.error
        return ran.value if isinstance(ran, Returned | Committed) else None


def _without_connection(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind not in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
        raise Misuse(f"{function.__name__} takes no connection; make it the first parameter: (connection, …).")
    return signature.replace(parameters=parameters[1:])


def _drop(join: Join | None) -> None:
    if join is not None:
        join.drop()


def _leave(join: Join | None, opened: Opened, *, broken: bool) -> Operation[None]:
    """Roll back what is open still, and give the connection back. The server's word has been heard: nobody listens."""
    if join is not None and broken:
        join.drop()
    elif join is not None:
        yield from join.rollback()
    with contextlib.suppress(Exception):
        yield from Do(opened.close)
