"""`@app.transaction`: the effect and its ledger entry in one database transaction."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from inspect import Parameter
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from ..claims.results import Packed, only_described
from ..errors import Misuse, NotDone
from ..operations import Operation, Raised, Returned, UserCall, await_, block
from ..records import Address, Check, Conflict, Insert, Lost, Write, Written
from ..stores.base import Store
from ..stores.user_drivers import MaybeAwait
from ..stores.user_transaction import Join, JoinedStore, Opened, TransactionEnded, open_from
from .engine.decisions import NeedsPerson
from .engine.ledger import STEP_DONE, STEP_KIND, Entry, EntryNote, entry_of, entry_write

if TYPE_CHECKING:
    from .engine.session import Session
    from .step import Step, StepCall

__all__ = [
    "NEEDS_SQL",
    "Committed",
    "InDoubt",
    "Joined",
    "LedgerHasNews",
    "Ran",
    "Recorded",
    "TornApart",
    "Transaction",
    "TransactionRefused",
    "attempt_joined",
    "joining",
    "outgoing_pieces",
]


# The ledger's final writes, given what the function returned: batches of one space each, the entry's last.
Record = Callable[[Any], Sequence[Sequence[Write]]]


class TransactionWrites(Struct, frozen=True):
    """What a transaction writes before it commits: other records on its join first, then the ledger's final writes."""

    writes: Record
    before: Callable[[Join], Operation[None]]


LIMIT = 600.0  # seconds, where no timeout= is given: without it, a silent connection would block for ever
GRACE = 5.0  # for an attempt whose connection was cut

Act = Callable[[], None]

NEEDS_SQL = "@app.transaction needs the ledger in the user's own SQL database"


class Committed(Struct, frozen=True):
    """Work and entry are committed. `written` is None where nothing was to be recorded."""

    value: Any
    written: Written | None


class TransactionRefused(Struct, frozen=True):
    """The ledger refused the write: everything was rolled back."""

    conflict: Conflict | Lost


class InDoubt(Struct, frozen=True):
    """The commit got no answer: only the database knows whether it landed."""

    error: Exception


class TornApart(Struct, frozen=True):
    """The function ended the transaction itself: its work may be committed, the entry is not."""


Ran = Committed | TransactionRefused | InDoubt | TornApart | Raised


class _Open(Struct, frozen=True):
    """The transaction that encloses the caller."""

    owner: object
    handle: Any


_open: ContextVar[_Open | None] = ContextVar("twiceproof_transaction", default=None)


def joining(store: Store) -> JoinedStore:
    """The store, if users can have transactions in it."""
    if getattr(store, "joins", None) is not None:
        return cast(JoinedStore, store)
    raise Misuse(
        f"{NEEDS_SQL}, and this store is none; use sqlite:///, postgresql:// or "
        'mariadb://, or @app.step(repeat="keyed") or repeat=check(…) instead.'
    )


def _nothing() -> None:
    """Where no other process waits to take over."""


class _TimeLimit:
    """The time limit of one attempt. `ring` is called on another thread."""

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
        """The error of a connection that was cut is reported as a time-out."""
        if not self.rang or not isinstance(ran, Raised | InDoubt) or not isinstance(ran.error, Exception):
            return ran
        error = self.error()
        error.__cause__ = ran.error
        return Raised(error) if isinstance(ran, Raised) else InDoubt(error)


class Transaction:
    """How a transactional function is run. `connect` makes its connections; None: to the store's own database."""

    def __init__(
        self, store: Callable[[], Store], function: Callable[..., Any], connect: Any, limit: float | None = None
    ) -> None:
        self._store = store
        self._function = function
        self._connect = connect
        self._limit = limit
        self.is_awaited = inspect.iscoroutinefunction(function)
        self.signature = _without_connection(function)

    # -- running ---------------------------------------------------------------------------------

    def attempt(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], record: TransactionWrites | None, give_up: Act = _nothing
    ) -> Operation[Ran]:
        """Open, work, record, commit. What ends with `Raised` was rolled back.

        When its time is over the connection is cut, so that a call waiting on it returns. `give_up` is called if the
        attempt
        still goes on, waiting for something else: others may take over, and its commit will be refused.
        """
        store = joining(self._store())
        try:
            dial = functools.partial(store.joins.connect, awaited=self.is_awaited)
            opened = yield from open_from(dial if self._connect is None else self._connect)
            return (yield from self._on(store, opened, args, kwargs, record, give_up))
        except TransactionEnded:
            return TornApart()
        except Misuse:
            raise  # a wrong connection stays wrong
        except Exception as error:  # noqa: BLE001 - the step's policy decides
            return Raised(error)

    def _on(
        self,
        store: JoinedStore,
        opened: Opened,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        record: TransactionWrites | None,
        give_up: Act,
    ) -> Operation[Ran]:
        from ..stores.deadlines import deadlines

        limit = LIMIT if self._limit is None else self._limit
        time = _TimeLimit(limit)
        with deadlines.after((limit, time.ring), (limit + GRACE, give_up)):
            join: Join | None = None
            try:
                join = time.join = store.join(opened.connection)
                yield from join.begin()
                ran = yield from self._within(join, args, kwargs, record)
            except GeneratorExit:  # generator closed: nothing can be awaited any more
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
        self, join: Join, args: tuple[Any, ...], kwargs: dict[str, Any], record: TransactionWrites | None
    ) -> Operation[Ran]:
        """What is not committed when this returns is rolled back by the caller."""
        finding = yield from self._call(join.handle, args, kwargs)
        if isinstance(finding, Raised):
            return Raised(join.explain(finding.error))
        written: Written | None = None
        if record is not None:
            yield from record.before(join)
        for batch in record.writes(finding.value) if record is not None else ():
            outcome = yield from join.write(*batch)
            if not isinstance(outcome, Written):
                return TransactionRefused(outcome)
            written = outcome
        try:
            yield from join.commit()
        except Exception as error:  # noqa: BLE001 - no error says whether the commit landed
            return InDoubt(error)
        return Committed(finding.value, written)

    def _call(self, handle: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation[Returned | Raised]:
        token = _open.set(_Open(self._kind, handle))
        try:
            return (yield from UserCall(lambda: self._begun(self._function(handle, *args, **kwargs))))
        finally:
            _open.reset(token)

    def _begun(self, value: Any) -> Any:
        if inspect.iscoroutine(value) and not self.is_awaited:
            value.close()
            raise NotDone(
                f"{self._function.__name__} is a def that returns a coroutine; make it an `async def`.", final=True
            )
        if told := only_described(value):
            raise Misuse(f"{self._function.__name__}: {told}.")
        return value

    @property
    def _kind(self) -> tuple[Any, bool]:
        return self._connect, self.is_awaited

    # -- outside a flow --------------------------------------------------------------------------

    def plain(self) -> Callable[..., Any]:
        """The function without its connection: in a transaction of its own, or in the enclosing one."""
        function = self._function
        if self.is_awaited:

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
    """Roll back what is still open, and return the connection. The server has answered: errors no longer matter."""
    if join is not None and broken:
        join.drop()
    elif join is not None:
        yield from join.rollback()
    with contextlib.suppress(Exception):
        yield from MaybeAwait(opened.close)


TORN = "its function ended the transaction itself, so its work may be there without its ledger entry"


class Recorded(Struct, frozen=True):
    """Work and entry are committed."""


class LedgerHasNews(Struct, frozen=True):
    """Nothing of this attempt is committed; the ledger has news about the step or the run."""


Joined = Recorded | LedgerHasNews | NeedsPerson | Raised
Done = Callable[[Any], tuple[EntryNote, Packed]]


def attempt_joined(session: Session, calling: StepCall, done: Done, outgoing: list[Any]) -> Operation[Joined]:
    transaction = calling.step.transaction
    assert transaction is not None  # noqa: S101 - checked before
    draft = _Draft(session, calling, done, outgoing)
    hold, heartbeat = session.hold, session.runtime.heartbeat
    ran = yield from transaction.attempt(
        calling.args, calling.kwargs, TransactionWrites(draft.writes, draft.send), lambda: heartbeat.drop(hold)
    )
    if isinstance(ran, Committed) and ran.written is not None and draft.entry is not None:
        session.recorded(draft.entry, ran.written)
        calling.step.results.warn_if_lossy(ran.value, draft.packed)
        return Recorded()
    if isinstance(ran, TornApart):
        return NeedsPerson(TORN)
    if isinstance(ran, TransactionRefused | InDoubt):
        return (yield from _reread_ledger(session, draft, ran))
    assert isinstance(ran, Raised)  # noqa: S101 - a commit without a record was not requested
    return ran


class _Draft:
    """The entry as it would be, made after the function returned and before the commit."""

    def __init__(self, session: Session, calling: StepCall, done: Done, outgoing: list[Any]) -> None:
        self.entry: Entry | None = None
        self.packed = Packed()
        self.name = calling.name
        self.fence = 0
        self._session = session
        self._done = done
        self._outgoing = outgoing

    def send(self, join: Join) -> Operation[None]:
        """Write messages that have a space of their own: in the same transaction, before the entry."""
        if self._outgoing:
            from .sending import in_transaction

            yield from in_transaction(join, self._session.runtime.tenant, self._outgoing)

    def writes(self, value: Any) -> Sequence[Sequence[Write]]:
        """Includes the slots of an ordered run:

        a run that lost its slot commits nothing, and no other takes it meanwhile.
        """
        session = self._session
        note, self.packed = self._done(value)
        self.entry = session.ended(self.name, STEP_DONE, note)
        held = session.hold.held
        self.fence = held.fence
        ours = Check(held.at, fence=held.fence)
        turn = [(Check(slot.held.at, fence=slot.held.fence),) for slot in session.slots]
        sent = _own_inserts(session, self._outgoing) if self._outgoing else []
        return *turn, (ours, entry_write(session.space, self.entry), *self.packed.writes(session.space, None), *sent)


def outgoing_pieces(session: Session, step: Step, outgoing: list[Any]) -> Operation[list[Any]]:
    """Return the messages of a step that has returned, as what goes with its completion. Those with spaces of their own
    are left out if its transaction has written them.
    """
    from .sending import pieces_of

    return _own_inserts(session, outgoing) if step.transaction else (yield from pieces_of(session, outgoing))


def _own_inserts(session: Session, outgoing: list[Any]) -> list[Insert]:
    from .sending import inserts_of

    return inserts_of(session, outgoing)


def _reread_ledger(
    session: Session, draft: _Draft, ran: TransactionRefused | InDoubt
) -> Operation[LedgerHasNews | Raised]:
    """After a refusal, or a commit without an answer. Raises if the run is no longer ours."""
    if (yield from _is_written(session, draft.name)) or session.hold.held.fence != draft.fence:
        return LedgerHasNews()
    if isinstance(ran, InDoubt):
        return Raised(ran.error)
    at = ran.conflict.at
    if any(at == slot.held.at for slot in session.slots):
        return LedgerHasNews()  # its slot is lost: it gives way before it would act again
    return Raised(NotDone(f"the ledger did not take it, because of what was found at {at.kind} {at.key}"))


def _is_written(session: Session, name: str) -> Operation[bool]:
    """Whether the entry differs from the known one. A check waits for a commit in progress; a read would not."""
    old = session.ledger.entries.get(name)
    at = Address(session.space, STEP_KIND, name)
    check = Check(at, version=old.version) if old else Check(at, absent=True)
    refused = yield from session.ledger.flush(check)
    if not isinstance(refused, Conflict):
        return False
    if refused.found is not None:
        session.ledger.entries[name] = entry_of(refused.found)
    else:
        session.ledger.entries.pop(name, None)
    return True
