"""Apply the same random steps to a store and to the memory model, and compare every answer.

    run_state_machine_as_test(lambda: StoreMachine(store, advance), settings=settings(deadline=None))

Versions, fences and clocks of the two differ; compared is which of them are equal, their order, and the time
between. Each run uses kinds of its own, so that one store serves all runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from msgspec import Struct
from msgspec.structs import replace

from ..records import Address, Check, Conflict, Insert, Record, Remove, Replace, Write, Written
from ..stores.base import Store
from ..stores.grouped import GroupedStore
from ..stores.memory import MemoryEngine
from .clocks import ShiftedClock

__all__ = ["StoreMachine"]


SPACES, KINDS, KEYS = ("one", "two"), ("claim", "step"), ("a", "b", "c")
STATES, QUEUES = ("", "held", "done"), ("", "q1", "q2")
# No sum of moves comes near a due time, so the seconds that a slow machine takes do not matter.
MOVES, DUE_IN, HIDE, SLACK = (70.0, 1_000.0), (None, 0.0, 100.0, 300.0), 100.0, 15.0

runs = itertools.count()


class StoreAct(Struct, frozen=True):
    """One drawn write: what to do where, on which condition, with what content."""

    verb: str
    kind: str
    key: str
    condition: str
    back: int  # how many records ago the condition was true; 0 = it is true now
    body: str | None
    state: str
    draw: bool
    lease: float | None
    queue: str
    due_in: float | None


acts = st.builds(
    StoreAct,
    verb=st.sampled_from(["insert", "insert", "replace", "replace", "remove", "check"]),
    kind=st.sampled_from(KINDS),
    key=st.sampled_from(KEYS),
    condition=st.sampled_from(["fence", "version", "absent"]),
    back=st.sampled_from([0, 0, 0, 1, 2]),
    body=st.sampled_from([None, "", "x", "y"]),
    state=st.sampled_from(STATES),
    draw=st.booleans(),
    lease=st.sampled_from([None, 60.0]),
    queue=st.sampled_from(QUEUES),
    due_in=st.sampled_from(DUE_IN),
)


class StoreMachine(RuleBasedStateMachine):
    """The rules, and the comparison after each of them."""

    def __init__(self, store: Store, advance: Callable[[float], None]) -> None:
        super().__init__()
        self.clock = ShiftedClock()
        self.stores: tuple[Store, Store] = (GroupedStore(MemoryEngine(self.clock), clock=self.clock), store)
        self.advances = (self.clock.advance, advance)
        self.run = next(runs)
        self.starts = [store.read(Address("start", "start", "start")).block().now for store in self.stores]
        self.seen: dict[Address, list[tuple[Record, Record]]] = {}
        self.twins: dict[tuple[Any, ...], Any] = {}

    # -- rules -----------------------------------------------------------------------------------

    @rule(
        space=st.sampled_from(SPACES),
        batch=st.lists(acts, min_size=1, max_size=3, unique_by=lambda act: (act.kind, act.key)),
    )
    def write(self, space: str, batch: list[StoreAct]) -> None:
        fitting = batch[: min(store.batch_limit for store in self.stores)]
        self._write([self._writes(Address(space, self._kind(act.kind), act.key), act) for act in fitting])

    @precondition(lambda self: self.seen)
    @rule(nth=st.integers(0, 7), act=acts)
    def change(self, nth: int, act: StoreAct) -> None:
        """Write where something is or has been: that is where most errors are."""
        places = list(self.seen)
        self._write([self._writes(places[nth % len(places)], act)])

    @precondition(lambda self: self.seen)
    @rule(nth=st.integers(0, 7), last=acts, late=acts)
    def overtake(self, nth: int, last: StoreAct, late: StoreAct) -> None:
        """Another client changes a record first, and the one with the older version comes too late."""
        self.change(nth, replace(last, verb="replace", condition="version", back=0))
        self.change(nth, replace(late, verb="remove" if late.verb == "remove" else "replace", back=1))

    def _write(self, pairs: list[tuple[Write, Write]]) -> None:
        mine, theirs = (store.write(*(pair[nth] for pair in pairs)).block() for nth, store in enumerate(self.stores))
        assert type(mine) is type(theirs), (mine, theirs)
        if isinstance(mine, Conflict) and isinstance(theirs, Conflict):
            assert mine.at == theirs.at
            self._compare(mine.found, theirs.found)
        elif isinstance(mine, Written) and isinstance(theirs, Written):
            self._same(("version", pairs[0][0].at.space), mine.version, theirs.version)
        for pair in pairs:
            self._look(pair[0].at)

    @rule(kind=st.sampled_from(KINDS), queues=st.sets(st.sampled_from(QUEUES)))
    def due(self, kind: str, queues: set[str]) -> None:
        kind = self._kind(kind)
        mine, theirs = (store.due(kind, queues=list(queues), hide=HIDE).block() for store in self.stores)
        by_address = {record.at: record for record in theirs.records}
        assert len(by_address) == len(theirs.records)
        assert {record.at for record in mine.records} == set(by_address)
        for record in mine.records:
            self._compare(record, by_address[record.at])
        self._in_order([record.at for record in theirs.records])
        assert (mine.next_in is None) == (theirs.next_in is None), (mine, theirs)
        assert abs((mine.next_in or 0) - (theirs.next_in or 0)) < SLACK
        for at in by_address:
            self._look(at)

    @rule(
        kind=st.sampled_from(KINDS),
        space=st.sampled_from([None, *SPACES]),
        state=st.sampled_from([None, *STATES]),
        limit=st.integers(1, 4),
    )
    def scan(self, kind: str, space: str | None, state: str | None, limit: int) -> None:
        mine, theirs = (self._all(store, self._kind(kind), space, state, limit) for store in self.stores)
        assert len({record.at for record in theirs}) == len(theirs)
        for one, other in itertools.zip_longest(mine, theirs):
            self._compare(one, other)

    @rule(seconds=st.sampled_from(MOVES))
    def advance(self, seconds: float) -> None:
        for move in self.advances:
            move(seconds)

    def teardown(self) -> None:
        """Compare what the walk did not: all records, their states, and what becomes due in which queue."""
        self.advance(MOVES[-1])
        for kind in KINDS:
            for state in (None, *STATES):
                self.scan(kind, None, state, 100)
            for queue in QUEUES:
                self.due(kind, {queue})

    # -- asking ----------------------------------------------------------------------------------

    def _kind(self, name: str) -> str:
        return f"{name} of run {self.run}"

    def _writes(self, at: Address, act: StoreAct) -> tuple[Write, Write]:
        """The same write for each store, with its own fence or version at that time."""
        history = self.seen.get(at, [])
        known = history[-1 - act.back % len(history)] if history else (None, None)
        mine, theirs = (_write(at, act, record) for record in known)
        return mine, theirs

    def _look(self, at: Address) -> None:
        mine, theirs = (store.read(at).block().record for store in self.stores)
        self._compare(mine, theirs)
        if mine is not None and theirs is not None:
            self.seen.setdefault(at, []).append((mine, theirs))

    def _all(self, store: Store, kind: str, space: str | None, state: str | None, limit: int) -> Sequence[Record]:
        records: list[Record] = []
        after: str | None = None
        for _ in range(100):
            page = store.scan(kind, space=space, state=state, after=after, limit=limit).block()
            assert len(page.records) <= limit
            records += page.records
            after = page.after
            if after is None:
                return sorted(records, key=lambda record: (record.at.space, record.at.key))
        raise AssertionError("The scan does not end.")

    # -- comparing -------------------------------------------------------------------------------

    def _compare(self, mine: Record | None, theirs: Record | None) -> None:
        if mine is None or theirs is None:
            assert mine is theirs is None, (mine, theirs)
            return
        for name in ("at", "body", "state", "queue"):
            assert getattr(mine, name) == getattr(theirs, name), (name, mine, theirs)
        for name in ("created_at", "updated_at", "lease_until", "due_at"):
            self._same_time(name, mine, theirs)
        self._same(("version", mine.at), mine.version, theirs.version)
        self._same(("nonce", mine.at), mine.nonce, theirs.nonce)
        self._same(("fence", mine.at), mine.fence, theirs.fence)
        assert (mine.fence == 0) == (theirs.fence == 0), (mine, theirs)
        for old_mine, old_theirs in self.seen.get(mine.at, []):
            assert (old_mine.fence < mine.fence) == (old_theirs.fence < theirs.fence), (mine, theirs)

    def _same(self, what: object, mine: object, theirs: object) -> None:
        """Equal values of the model are equal in the store, and different ones differ."""
        assert self.twins.setdefault((what, "mine", mine), theirs) == theirs, (what, mine, theirs)
        assert self.twins.setdefault((what, "theirs", theirs), mine) == mine, (what, mine, theirs)

    def _same_time(self, name: str, mine: Record, theirs: Record) -> None:
        times = [getattr(record, name) for record in (mine, theirs)]
        assert (times[0] is None) == (times[1] is None), (name, mine, theirs)
        if times[0] is not None:
            since = [time - start for time, start in zip(times, self.starts, strict=True)]
            assert abs(since[0] - since[1]) < SLACK, (name, mine, theirs)

    def _in_order(self, places: list[Address]) -> None:
        """By the due times from before they were hidden."""
        times = [self.seen[at][-1][1].due_at or 0.0 for at in places if at in self.seen]
        assert times == sorted(times)


def _write(at: Address, act: StoreAct, known: Record | None) -> Write:
    content: dict[str, Any] = {
        "state": act.state,
        "draw": act.draw,
        "lease": act.lease,
        "queue": act.queue,
        "due_in": act.due_in,
    }
    if act.verb == "insert":
        return Insert(at, act.body or "", **content)
    if act.verb == "check" and act.condition == "absent":
        return Check(at, absent=True)
    condition: dict[str, Any] = {"version": known.version if known else "of nothing"}
    if act.condition == "fence":
        condition = {"fence": known.fence if known and known.fence else 2**40}
    if act.verb == "replace":
        return Replace(at, act.body, **content, **condition)
    return Remove(at, **condition) if act.verb == "remove" else Check(at, **condition)
