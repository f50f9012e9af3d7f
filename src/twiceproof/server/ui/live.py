"""Live changes: while streams are open, one task per process queries the store and informs them all.

However many browsers listen, a look costs the store the same few reads. It looks when the store says that something may
have changed, at most once a second; after that again and again, each time later, until it looks every 160 seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

import msgspec
from msgspec import Struct, field

from ...app.app import App
from ...claims.claim import FAILED, HELD, REVIEW, RUN, claim_of, parse_space, shown_id
from ...claims.states import is_lapsed
from ...claims.views import reviewed_claims
from ...errors import StoreError
from ...flows.engine.run_states import queue_of
from ...flows.history.queries import Filter, list_runs
from ...flows.waits.approvals import open_approvals
from ...operations import Operation, await_
from ...records import Address, Record
from ...stores.notifications import Subscription, queue_channel
from ..request import StatusView
from .formatting import sign_of

__all__ = ["MOST_STREAMS", "LiveFeed", "LiveSnapshot", "LiveStream", "look_at"]

MOST_STREAMS = 200
MOST_OF_ONE = 20  # of one session: a browser needs one, and one without locks has one for each tab
MOST_RUNS = 200  # runs whose state one stream follows
MOST_COUNTED = 100  # in the bar at the top: "100+"
MOST_NEWER = 50
MOST_READ = 1_000  # records for one count, where others' are between
SOONEST, LATEST = 2.0, 160.0  # seconds between two looks when nothing is heard: after a change, and in the end
APART = 1.0  # seconds between two looks, however much is heard
PULSE = 15  # seconds after which a silent stream sends a comment, so that a proxy keeps it open

MayListen = Callable[[], Awaitable[bool]]


class LiveStream(Struct):
    """One open stream: whose it is, which runs it follows, and what it was told last.

    `may_listen`: whether its session still holds. It is asked before something new is told, and not in between.
    `session`: "" where no token exists.
    """

    app: App
    runs: tuple[Address, ...]
    since: float
    changed: asyncio.Event
    may_listen: MayListen
    told: str = ""
    session: str = ""

    @property
    def tenant(self) -> str:
        return self.app.settings.tenant


class LiveSnapshot(Struct, frozen=True):
    """What one look found for a tenant: counts that end at a cap, the states of runs, and when the latest began."""

    counts: dict[str, int]
    states: dict[Address, dict[str, str]]
    began: tuple[float, ...]
    told: dict[tuple[tuple[Address, ...], int], str] = field(default_factory=dict)  # so far: tabs often show the same

    def message_for(self, stream: LiveStream) -> str:
        """Return what one stream is told of it, as JSON."""
        newer = sum(at > stream.since for at in self.began)
        text = self.told.get((stream.runs, newer))
        if text is None:
            runs = {shown_id(at): self.states[at] for at in stream.runs if at in self.states}
            shape = {"counts": self.counts, "runs": runs, "newer": newer, "most": MOST_COUNTED}
            text = self.told[stream.runs, newer] = msgspec.json.encode(shape).decode()
        return text

    def equals(self, other: LiveSnapshot | None) -> bool:
        """Whether nothing has changed since another look."""
        return other is not None and (self.counts, self.states, self.began) == (other.counts, other.states, other.began)

    def has_all(self, runs: Sequence[Address]) -> bool:
        return all(at in self.states for at in runs)


def look_at(app: App, runs: Sequence[Address]) -> Operation[LiveSnapshot]:
    """Look once, in at most seven reads."""
    store, tenant = app.store, app.settings.tenant
    counts = {}
    for name, state in (("review", REVIEW), ("failed", FAILED)):
        page = yield from list_runs(store, Filter(tenant), (state,), limit=MOST_COUNTED + 1, most_read=MOST_READ)
        counts[name] = len(page.runs)
    counts["review"] += len((yield from reviewed_claims(store, tenant)))
    counts["approvals"] = len((yield from open_approvals(store, f"{tenant}/", MOST_COUNTED + 1)))
    found = (yield from store.read_each(list(runs))) if runs else []
    states = {at: _state(one.record, one.now) for at, one in zip(runs, found, strict=True)}
    return LiveSnapshot(counts, states, (yield from _began(app)))


def _began(app: App) -> Operation[tuple[float, ...]]:
    """Return when the latest runs of the tenant began; none on a store that does not list by age."""
    store, tenant = app.store, app.settings.tenant
    if not store.newest_first:
        return ()
    latest = yield from store.scan(RUN, newest=True, limit=MOST_NEWER)
    return tuple(one.created_at for one in latest.records if parse_space(one.at.space).tenant == tenant)


def _state(record: Record | None, now: float) -> dict[str, str]:
    if record is None:
        return {"state": "gone", "sign": "–", "word": "gone", "tone": "calm", "version": ""}
    sign = sign_of(record.state, lapsed=record.state == HELD and is_lapsed(record, now))
    reason = claim_of(record).reason[:300]
    fields = {"sign": sign.sign, "word": sign.word, "tone": sign.tone, "reason": reason}
    return {"state": record.state, "version": record.version, **fields}


class LiveFeed:
    """The streams of one server, and the task that looks for them all."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._open: dict[int, LiveStream] = {}
        self._found: dict[str, LiveSnapshot] = {}  # by tenant: what the latest look found
        self._task: asyncio.Task[None] | None = None
        self._watch: Subscription | None = None
        self.looks = 0

    def is_full(self, session: str) -> bool:
        """Whether this session gets no stream more: one could otherwise take those of all."""
        own = sum(one.session == session for one in self._open.values()) if session else 0
        return len(self._open) >= MOST_STREAMS or own >= MOST_OF_ONE

    @property
    def streams(self) -> int:
        return len(self._open)

    async def stream(
        self, listener: LiveStream, gone: asyncio.Future[None], status: StatusView
    ) -> AsyncIterator[bytes]:
        """Yield events until the browser is gone, its session is over or the server drains."""
        name = id(listener)
        self._open[name] = listener
        self._start()
        silent = 0
        try:
            while not gone.done() and not status.draining:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(listener.changed.wait(), 1.0)
                silent += 1
                if listener.changed.is_set():
                    listener.changed.clear()
                    event = self._event(listener)
                    if event and not await listener.may_listen():
                        return
                    if event:
                        silent = 0
                        yield event
                if silent >= PULSE:
                    silent = 0
                    yield b": still here\n\n"
        finally:
            del self._open[name]
            if self._watch is not None:
                self._watch.wake()

    def _event(self, listener: LiveStream) -> bytes:
        """Return what has changed for this stream since it was told last; b"" if nothing has."""
        found = self._found.get(listener.tenant)
        if found is None or not found.has_all(listener.runs):
            return b""  # the look that its opening asked for is under way
        text = found.message_for(listener)
        if text == listener.told:
            return b""
        listener.told = text
        return f"data: {text}\n\n".encode()

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._follow())
        elif self._watch is not None:
            self._watch.wake()  # it follows other runs now

    async def _follow(self) -> None:
        watch = self._watch = self._app.store.watch(())
        pause = SOONEST
        try:
            while self._open:
                watch.move(self._names())
                pause = SOONEST if await self._look() else min(LATEST, pause * 2)
                await asyncio.sleep(APART)
                await asyncio.to_thread(watch.wait, pause)
        finally:
            self._watch = None
            self._found.clear()
            watch.close()

    async def _look(self) -> bool:
        """Look once for each tenant that somebody listens to. Return whether anything has changed."""
        before, self._found = self._found, {}
        for tenant, streams in self._by_tenant().items():
            runs = list(dict.fromkeys(at for one in streams for at in one.runs))
            self.looks += 1
            try:
                self._found[tenant] = await await_(look_at(streams[0].app, runs))
            except StoreError:
                continue  # told when the store answers again
        for listener in self._open.values():
            listener.changed.set()
        return any(not found.equals(before.get(tenant)) for tenant, found in self._found.items())

    def _by_tenant(self) -> Mapping[str, list[LiveStream]]:
        found: dict[str, list[LiveStream]] = {}
        for listener in self._open.values():
            found.setdefault(listener.tenant, []).append(listener)
        return found

    def _names(self) -> set[str]:
        """Return the names to subscribe to: the runs that are shown, and the queues of new runs."""
        names: set[str] = set()
        for tenant, streams in self._by_tenant().items():
            names |= {at.space for one in streams for at in one.runs}
            for flow in self._app.flows.values():
                names |= {queue_channel(queue_of(tenant, flow.name, version)) for version in flow.versions}
        return names
