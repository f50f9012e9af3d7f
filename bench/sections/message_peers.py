"""Messages beside faststream-outbox, on NATS beside nats-py alone, and claims while messages pass in their store."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tests.servers.nats import NatsServer

from twiceproof import App
from twiceproof.brokers.open import open_broker

from ..callers import One
from ..findings import Findings
from ..plan import Plan
from ..progress import Progress
from ..rounds import Contender, Slots
from ..sites import Site
from .messages import BATCH, WINDOW, Ours, Prepared, race

__all__ = ["measure_message_peers"]

A_SECOND = 2_000  # messages that pass through the store beside the claims
STREAM = "bench"


def measure_message_peers(site: Site, plan: Plan, progress: Progress) -> Findings:
    findings = Findings()
    for measure in (_nats, _nats_flushing, _claims, *((_faststream,) if site.name == "PostgreSQL" else ())):
        with ExitStack() as stack:
            findings.add(measure(site, plan, progress, stack))
    return findings


# -- faststream-outbox ---------------------------------------------------------------------------


def _faststream(site: Site, plan: Plan, progress: Progress, stack: ExitStack) -> Findings:
    findings = Findings()
    try:
        from ..contenders.outboxes import FastStreamOutbox
    except ImportError:  # its extra is not installed
        return findings
    for batched in (False, True):
        theirs = FastStreamOutbox(site.fresh(), batched=batched)
        stack.callback(theirs.close)
        ours = Ours(site, stack)
        name = f"faststream-outbox{', batched' if batched else ''}"
        pair = [
            Contender(name, Prepared(_filling(theirs.fill), theirs.relay), rows=BATCH, each=1),
            Contender("our relay", Prepared(ours.fill, ours.relay), rows=BATCH, each=1),
        ]
        part = f"{site.name}, {BATCH} messages, beside {name}"
        findings.add(race(part, name, pair, Slots(plan.rounds, plan.slot), progress))
    return findings


def _filling(fill: Callable[[int], object]) -> Callable[[], object]:
    return lambda: fill(BATCH)


# -- NATS ----------------------------------------------------------------------------------------


def _nats(site: Site, plan: Plan, progress: Progress, stack: ExitStack) -> Findings:
    return _to_nats(site, plan, progress, stack, "2m", "NATS")


def _nats_flushing(site: Site, plan: Plan, progress: Progress, stack: ExitStack) -> Findings:
    return _to_nats(site, plan, progress, stack, "always", "NATS, sync_interval always")


def _to_nats(site: Site, plan: Plan, progress: Progress, stack: ExitStack, sync: str, name: str) -> Findings:
    server = stack.enter_context(NatsServer(sync=sync))
    bare = BareNats(server.url)
    stack.callback(bare.close)
    broker = open_broker(server.url)
    stack.callback(broker.close)
    ours = Ours(site, stack, broker, place=STREAM)

    def fill() -> None:
        bare.purge()
        ours.fill()

    pair = [
        Contender("nats-py, acknowledged", Prepared(bare.purge, bare.publish), rows=BATCH, each=1),
        Contender("our relay", Prepared(fill, ours.relay), rows=BATCH, each=1),
    ]
    return race(
        f"{site.name}, {BATCH} messages to {name}", "relay to a broker", pair, Slots(plan.rounds, plan.slot), progress
    )


class BareNats:
    """A client of NATS without us, on a loop of its own."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._keys = map(str, itertools.count())
        self._run(self._open(url))

    async def _open(self, url: str) -> None:
        import nats
        from nats.js.api import StreamConfig

        self._client: Any = await nats.connect(url)
        self._stream: Any = self._client.jetstream()
        await self._stream.add_stream(StreamConfig(STREAM, subjects=[STREAM]))

    def purge(self) -> None:
        self._run(self._stream.purge_stream(STREAM))

    def publish(self) -> None:
        for _ in range(BATCH // WINDOW):
            self._run(self._publish())

    async def _publish(self) -> None:
        body = b'{"order":17,"note":"' + b"x" * 900 + b'"}'
        sent = [{"Nats-Msg-Id": f"bare-{next(self._keys)}"} for _ in range(WINDOW)]
        await asyncio.gather(*(self._stream.publish(STREAM, body, headers=headers) for headers in sent))

    def close(self) -> None:
        self._run(self._client.close())
        self._loop.close()

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)


# -- claims beside messages ----------------------------------------------------------------------


class Beside:
    """Callers whose acts run while something else does."""

    def __init__(self, callers: One, begin: Callable[[], object], end: Callable[[], object]) -> None:
        self.label, self.count = callers.label, callers.count
        self._callers, self._begin, self._end = callers, begin, end

    def time(self, each: int) -> float:
        self._begin()
        try:
            return self._callers.time(each)
        finally:
            self._end()

    def close(self) -> None:
        """Nothing is open."""


def _claims(site: Site, plan: Plan, progress: Progress, stack: ExitStack) -> Findings:
    """One caller claims; another process sends messages to the same store and publishes them, at a steady rate."""
    url = site.fresh()
    app = App(url)
    stack.callback(app.close)

    @app.once(key="{order}")
    def charge(order: str) -> str:
        return order

    keys = map(str, itertools.count())
    spawn = multiprocessing.get_context("spawn")
    going, ended, passed = spawn.Event(), spawn.Event(), spawn.Value("q", 0)
    other = spawn.Process(target=_pass_messages, args=(url, going, ended, passed), daemon=True)
    other.start()
    stack.callback(other.join, 30)
    stack.callback(ended.set)
    stack.callback(going.set)
    going.set()
    while not passed.value:  # it has begun
        if not other.is_alive():
            raise RuntimeError("the process that sends messages has ended; nothing was measured")
        time.sleep(0.01)
    going.clear()
    alone, beside = One(lambda _: charge(next(keys))), One(lambda _: charge(next(keys)))
    pair = [Contender("claims alone", alone), Contender("beside messages", Beside(beside, going.set, going.clear))]
    slots = Slots(plan.rounds, 8 * plan.slot)
    return race(f"{site.name}, claims", "claims beside messages", pair, slots, progress)


def _pass_messages(url: str, going: Any, ended: Any, passed: Any) -> None:
    with App(url) as app:
        ours = Ours.on(app)
        each = A_SECOND // 20
        while not ended.is_set():
            going.wait()
            began = time.perf_counter()
            ours.fill(each)
            app.relay().run(until_idle=True)
            passed.value += each
            time.sleep(max(0.0, 0.05 - (time.perf_counter() - began)))
