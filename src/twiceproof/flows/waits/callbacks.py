"""Callback URLs, and `app.remote`: start work elsewhere and wait for its callback."""

from __future__ import annotations

import functools
import inspect
import secrets
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Raw, Struct

from ...claims.claim import SELF, short_id
from ...claims.states import Pointer, pointer_write
from ...effects.repeat import NEVER, Retry
from ...errors import Misuse, NoSuchWait
from ...operations import Operation, await_
from ...records import Address, Record, Write
from ...stores.base import Store
from ..engine.context import Unwind
from ..engine.decisions import StepPlan
from ..engine.exits import Review
from ..engine.ledger import STEP_DONE, STEP_FAILED, UNKNOWN, WAITS, Entry, EntryNote
from ..engine.session import Session
from ..engine.step_identity import effect_key
from ..step import Step, called_with
from .records import ARRIVAL_KIND as ARRIVAL
from .records import CALLBACK_KIND, WAIT, Delivered, deliver, is_for_run, require_current_run
from .waiting import PayloadType, Pending, arrived, awaited, timed_out, wait_name

__all__ = [
    "PATH",
    "WAITED",
    "Callback",
    "CallbackView",
    "callback_url",
    "deliver_by_token",
    "list_callbacks",
    "remote",
]


PATH = "/v1/callbacks/"
TOKEN_BYTES = 24


class Callback(Pointer, frozen=True, omit_defaults=True):
    """Where a token leads: a wait of one start of one run."""

    start_id: str = ""


def callback_url(session: Session, name: str) -> Operation[str]:
    """Return the URL of a wait, the same in a replay. The token is stored before the URL is handed out."""
    session.refuse_if_stopped()
    entry_name = f"callback:{wait_name(name).partition(':')[2]}"
    entry = session.visit(entry_name, "")
    if entry is None:
        session.refuse_unvisited(entry_name)
        base, token = _base_of(session), secrets.token_urlsafe(TOKEN_BYTES)
        yield from _token_space(session, token, name)
        # The whole URL is recorded: if the app's address changes, a replay must still return what was handed out.
        entry = session.finished(
            entry_name, STEP_DONE, EntryNote(result=Raw(msgspec.json.encode(f"{base}{PATH}{token}")))
        )
    return msgspec.json.decode(entry.note.result, type=str)


def _base_of(session: Session) -> str:
    base = session.runtime.url
    if not base.startswith(("http://", "https://")):
        raise Misuse(
            'The public URL of this app is not known; pass App(url="https://hooks.example.com") or set TWICEPROOF_URL.'
        )
    return base.rstrip("/")


def _token_space(session: Session, token: str, name: str) -> Operation[None]:
    """A space of its own, because a token is looked up before its run is known."""
    claim = session.claim
    leads = Callback(session.space, wait_name(name), claim.key, claim.operation, session.work.start_id)
    yield from session.runtime.store.write(pointer_write(_address(token), leads))


def _address(token: str) -> Address:
    hashed = sha256(token.encode(errors="replace")).hexdigest()
    return Address(f"callbacks/{hashed}", CALLBACK_KIND, SELF)


def deliver_by_token(store: Store, token: str, payload: Raw, *, mark: str) -> Operation[Delivered]:
    """Deliver what was posted to a callback URL. The token never appears in an answer or a log."""
    found = (yield from store.read(_address(token))).record
    if found is None:
        raise NoSuchWait("There is no such callback, or its time is over; check the URL that the run handed out.")
    leads = msgspec.json.decode(found.body, type=Callback)
    at = Address(leads.space, ARRIVAL, leads.step)
    return (yield from deliver(store, at, payload, mark=mark, start_id=leads.start_id))


PAGE = 200
WAITED = "waited for"


class CallbackView(Struct, frozen=True):
    """One callback URL without its token, which only its recipient knows."""

    flow: str
    key: str
    name: str
    run: str
    state: str  # waiting, arrived, timeout
    handed_out_at: float


def list_callbacks(
    store: Store, tenant: str, *, flow: str = "", ended: bool = False, limit: int
) -> Operation[list[CallbackView]]:
    """Callbacks still waited for; with `ended`, the others too. Those of forgotten runs are left out."""
    found: list[CallbackView] = []
    after: str | None = None
    prefix = f"{tenant}/{flow}/" if flow else f"{tenant}/"
    while True:
        page = yield from store.scan(CALLBACK_KIND, after=after, limit=PAGE)
        for record in page.records:
            shape = yield from _shape(store, record, prefix)
            if shape is not None and (ended or shape.state == WAITED):
                found.append(shape)
        after = page.after
        if after is None or len(found) >= limit:
            return found[:limit]


def _shape(store: Store, record: Record, prefix: str) -> Operation[CallbackView | None]:
    leads = msgspec.json.decode(record.body, type=Callback)
    if not leads.space.startswith(prefix):
        return None
    try:
        run = yield from require_current_run(store, leads.space, leads.start_id)
    except NoSuchWait:
        return None
    arrival = (yield from store.read(Address(leads.space, ARRIVAL, leads.step))).record
    state = arrival.state if arrival is not None and is_for_run(arrival, run) else WAITED
    name = leads.step.removeprefix(WAIT)
    return CallbackView(leads.flow, leads.key, name, short_id(leads.space), state, record.created_at)


class _StartProof(Pending):
    """A callback that also proves a start whose outcome was unknown."""

    def __init__(self, name: str, seconds: float | None, start: str) -> None:
        super().__init__(wait_name(name), f"waits for {name} from a start of unknown outcome", seconds)
        self._start = start

    def close(self, session: Session) -> Operation[Sequence[Write]]:
        """Not a time-out: a person must say whether the work was started. Then the time starts again."""
        old = session.ledger.entries[self.name]
        session.ledger.note(Entry(self.name, WAITS, EntryNote(), old.version, session.ledger.now()))
        yield from session.ledger.flush()
        session.stop_run(Review(f"{self._start}: it is not known whether it was started, and no callback came in time"))


def remote(
    session: Session, start: Callable[..., Any], name: str, seconds: float | None, retry: Retry, payload: PayloadType
) -> Operation[Any]:
    """Return the callback's payload. The start is a step that is never repeated blindly."""
    step_name = f"start:{name}"
    url = yield from callback_url(session, name)
    sure = yield from _started(session, _step_of(session, start, retry), step_name, name, url)
    pending = Pending(wait_name(name), f"waits for {name}", seconds) if sure else _StartProof(name, seconds, step_name)
    note = yield from awaited(session, pending)
    if not sure:
        _proved(session, step_name)
    if not note.result:
        raise timed_out(session, f"{name} was started, and nothing came back in time", name)
    return payload.restore(session, pending.name, note)


def _started(session: Session, step: Step, step_name: str, name: str, url: str) -> Operation[bool]:
    """Whether the start is known to have happened. If not, the callback will show it: nothing is started again, and no
    review is opened yet.
    """
    entry = session.ledger.entries.get(step_name)
    if entry is not None and entry.state not in (
        STEP_DONE,
        STEP_FAILED,
    ):  # a replay gets the same answer as the first run
        came = yield from arrived(session, Address(session.space, ARRIVAL, wait_name(name)))
        if came is not None:
            session.visit(step_name, entry.note.asked)
            return False
    given = called_with(step.function, {"effect_key": effect_key(session.space, step_name)})
    try:
        yield from session.step(step, (url,), given, name=step_name)
    except Unwind:
        after = session.ledger.entries.get(step_name)
        if after is None or after.state != UNKNOWN:
            raise
        session.clear_stop()  # too early for a review
        return False
    return True


def _proved(session: Session, step_name: str) -> None:
    entry = session.ledger.entries[step_name]
    note = msgspec.structs.replace(entry.note, result=Raw(b"null"), fault=None, reason="its callback arrived")
    session.finished(step_name, STEP_DONE, note)


def _step_of(session: Session, start: Callable[..., Any], retry: Retry) -> Step:
    return Step(_start_function(session, start), StepPlan(NEVER, retry), name="start")


def _start_function(session: Session, start: Callable[..., Any]) -> Callable[..., Any]:
    """An `async def` flow awaits its start; a plain function runs in a thread, so that it does not block the loop."""
    if not callable(start):
        raise Misuse("app.remote needs a function that starts the work: start=fn, called with the callback's URL.")
    if session.drive is not await_:
        if inspect.iscoroutinefunction(start):
            raise Misuse("An `async def` start belongs to an `async def` flow; make one of the two the other's kind.")
        return start
    if inspect.iscoroutinefunction(start):
        return start

    @functools.wraps(start)
    async def on_a_thread(*args: Any, **kwargs: Any) -> Any:
        import asyncio

        return await asyncio.to_thread(start, *args, **kwargs)

    return on_a_thread
