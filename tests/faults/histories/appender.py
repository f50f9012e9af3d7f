"""A caller that reads some lists of one space and appends to some of them, in one batch that lands as a whole."""

from __future__ import annotations

from random import Random
from typing import Any

from msgspec import json

from tests.faults.histories.call import Call
from tests.faults.histories.tries import Tries
from tests.faults.linearizability import Append
from twiceproof.operations import Operation as Steps
from twiceproof.records import Address, Check, Conflict, Insert, Record, Replace, Write, Written
from twiceproof.stores.base import Store

SPACE, KIND = "lists", "list"
NAMES = ("a", "b", "c", "d")


class Appender:
    """`history` and `count` are shared by all appenders, so that no value is appended twice."""

    def __init__(
        self, name: str, store: Store, tries: Tries, rng: Random, history: list[Append], count: list[int]
    ) -> None:
        self.name = name
        self.store = store
        self.tries = tries
        self.rng = rng
        self.history = history
        self.count = count

    def begin(self, tick: int) -> Call:
        chosen = self.rng.sample(NAMES, self.rng.randint(1, len(NAMES)))
        self.count[0] += 1
        self.appends = dict.fromkeys(chosen[: self.rng.randint(0, 2)], self.count[0])
        self.reads: dict[str, tuple[int, ...]] = {}
        return Call(self._perform(chosen), tick, self.tries)

    def _perform(self, chosen: list[str]) -> Steps[bool | None]:
        writes = []
        for name in chosen:
            record = (yield from self.store.read(Address(SPACE, KIND, name))).record
            self.reads[name] = tuple(json.decode(record.body)) if record else ()
            writes.append(self._write(name, record))
        outcome = yield from self.store.write(*writes)
        if isinstance(outcome, Written | Conflict):
            return isinstance(outcome, Written)
        return None

    def _write(self, name: str, record: Record | None) -> Write:
        at = Address(SPACE, KIND, name)
        version: Any = record.version if record else None
        if name not in self.appends:
            return Check(at, version=version) if record else Check(at, absent=True)
        body = json.encode([*self.reads[name], self.appends[name]]).decode()
        return Replace(at, body, version=version) if record else Insert(at, body)

    def end(self, call: Call, tick: int) -> None:
        landed = call.value if call.error is None else (None if call.error.unsure else False)
        returned = None if call.error is not None and landed is None else tick
        self._add(call, landed, returned)

    def die(self, call: Call) -> None:
        self._add(call, None, None)

    def _add(self, call: Call, landed: bool | None, returned: int | None) -> None:
        self.history.append(Append(self.name, self.reads, self.appends, landed, call.invoked, returned))
