"""Real histories: processes that do random things to few keys on one store, under a nemesis, each history judged."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from random import Random
from urllib.parse import urlsplit

from tests.faults.histories.crew import Crew, Process
from tests.faults.histories.member import MILLISECOND, Line, Part
from tests.faults.histories.nemesis import Nemesis
from tests.faults.histories.summary import Summary
from tests.faults.linearizability import Model, Operation, check
from tests.servers.proxy import FaultProxy

MEMBERS, LANES, OPERATIONS, KEYS = 5, 3, 10, 2
SLACK = 2 * MILLISECOND  # between the clocks of the store and of the processes, within one lease
MODEL = Model(slack=SLACK)
UNHEARD = 3  # how often a killed process may have sent what it was about to do
PATIENCE = 60.0  # for the next line of any process


def record(
    *store_urls: str, seed: int, histories: int, blind: bool = False, quiet: bool = False, model: Model = MODEL
) -> Summary:
    """Record histories on this store; each process has one of its URLs. `blind` removes the fence, `quiet` the nemesis
    (controls). `model`: what the store promises.
    """
    began = time.monotonic()
    summary = Summary(f"real ({urlsplit(store_urls[0]).scheme})", seed)
    with contextlib.ExitStack() as stack:
        ways = [stack.enter_context(_by_way_of_a_proxy(url)) for url in store_urls]
        proxies = [proxy for _, proxy in ways if proxy is not None]
        crew = Crew([url for url, _ in ways], seed, MEMBERS, LANES, blind=blind)
        nemesis = Nemesis(Random(seed), crew, proxies, kills=0 if quiet else max(1, histories // 40))
        try:
            _Recording(crew, nemesis, summary, histories, quiet=quiet, model=model).run()
        finally:
            nemesis.make_good(everything=True)
            crew.close()
        summary.faults.update(nemesis.did)
    summary.seconds = time.monotonic() - began
    return summary


@contextlib.contextmanager
def _by_way_of_a_proxy(url: str) -> Iterator[tuple[str, FaultProxy | None]]:
    parts = urlsplit(url)
    if parts.hostname is None or parts.port is None:
        yield url, None
        return
    with FaultProxy(parts.hostname, parts.port) as proxy:
        yield proxy.url(url), proxy


class _Lane:
    """One history at a time: the active members, what each is about to do, and the answers."""

    def __init__(self) -> None:
        self.nth = -1
        self.players: set[Process] = set()
        self.begun: dict[Process, Operation | None] = {}
        self.history: list[Operation] = []


class _Recording:
    def __init__(
        self, crew: Crew, nemesis: Nemesis, summary: Summary, histories: int, *, quiet: bool, model: Model
    ) -> None:
        self.crew = crew
        self.model = model
        self.nemesis = nemesis
        self.summary = summary
        self.histories = histories
        self.quiet = quiet
        self.started = 0
        self.lanes = [_Lane() for _ in range(LANES)]

    def run(self) -> None:
        heard_at = time.monotonic()
        while self.summary.histories < self.histories:
            self.nemesis.make_good()
            heard = self.crew.next_line(0.005)
            if heard is not None:
                heard_at = time.monotonic()
                self._hear(*heard)
            elif time.monotonic() - heard_at > PATIENCE:
                raise TimeoutError(f"seed {self.summary.seed}: nobody has said anything for {PATIENCE:.0f} s")

    def _hear(self, process: Process, line: Line | None) -> None:
        if line is None:
            self._bury(process)
        elif line.lane < 0:
            self.crew.ready.add(process)
            self._start_idle_lanes()
        elif line.broke:
            raise RuntimeError(f"seed {self.summary.seed}: a member broke: {line.broke}")
        elif line.begun is not None:
            self.lanes[line.lane].begun[process] = line.begun
        elif line.ended is not None:
            self.lanes[line.lane].begun.pop(process, None)
            self.lanes[line.lane].history.extend(line.ended)
            if not self.quiet:
                self.nemesis.strike()
        else:
            self._leave(self.lanes[line.lane], process)

    def _bury(self, process: Process) -> None:
        """Record that a dead member's operation has no answer."""
        self.crew.replace(process)
        for lane in self.lanes:
            last = lane.begun.pop(process, None)
            if last is not None:
                lane.history.extend([last] * UNHEARD)
            if process in lane.players:
                self._leave(lane, process)

    def _leave(self, lane: _Lane, process: Process) -> None:
        lane.players.discard(process)
        if not lane.players:
            self._judge(lane)
            self._start_idle_lanes()

    def _judge(self, lane: _Lane) -> None:
        began = time.monotonic()
        verdict = check(lane.history, model=self.model)
        self.summary.add(lane.history, verdict, f"history {lane.nth} of seed {self.summary.seed}")
        self.summary.checking += time.monotonic() - began
        lane.nth = -1

    def _start_idle_lanes(self) -> None:
        if len(self.crew.ready) < MEMBERS - 1:
            return  # the others are on their way
        for number, lane in enumerate(self.lanes):
            if lane.nth < 0 and self.started < self.histories:
                self._start(number, lane)

    def _start(self, number: int, lane: _Lane) -> None:
        lane.nth, lane.history, lane.begun = self.started, [], {}
        self.started += 1
        lane.players = set(self.crew.ready)
        keys = [f"{self.summary.seed}-{lane.nth}-{nth}" for nth in range(KEYS)]
        for process in lane.players:
            process.give(Part(number, self.summary.seed * 1_000_003 + lane.nth, keys, OPERATIONS))
