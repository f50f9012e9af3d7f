"""A stage for flows: a store that outlives processes, processes that die on order, and an outside that keeps count."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from twiceproof import App, StoreUnavailable
from twiceproof.claims.claim import address_of
from twiceproof.flows.engine.ledger import Entry, entry_of
from twiceproof.prove.clocks import ManualClock
from twiceproof.prove.faulty_engine import FaultyEngine
from twiceproof.records import Batch, Record
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine


class Died(StoreUnavailable):
    """The process was killed: nothing it does afterwards reaches the store."""

    def __init__(self) -> None:
        super().__init__("killed")


class DyingEngine(FaultyEngine):
    """A process' own line to the store. At commit number `at` it is cut for good, before or after it landed."""

    def __init__(self, inner: Any, at: int | None = None, landed: bool = False) -> None:
        super().__init__(inner)
        self.at = at
        self.landed = landed
        self.commits = 0
        self.dead = False

    def commit(self, batches: Sequence[Batch]) -> Any:
        self._live()
        self.commits += 1
        if self.commits != self.at:
            return super().commit(batches)
        self.dead = True
        if self.landed:
            super().commit(batches)
        raise Died()

    def fetch(self, addresses: Any) -> Any:
        self._live()
        return super().fetch(addresses)

    def scan(self, *args: Any) -> Any:
        self._live()
        return super().scan(*args)

    def due(self, *args: Any) -> Any:
        self._live()
        return super().due(*args)

    def _live(self) -> None:
        if self.dead:
            raise Died()


class Stage:
    """Processes come and go; the store, the clock and the outside stay."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.engine = MemoryEngine(self.clock)
        self.effects: Counter[str] = Counter()
        self.apps: list[App] = []

    def process(self, at: int | None = None, *, landed: bool = False) -> App:
        """A new process. `at`: it is killed at its so-manieth commit."""
        engine = DyingEngine(self.engine, at, landed)
        app = App(GroupedStore(engine, clock=self.clock), clock=self.clock)
        app.engine = engine  # type: ignore[attr-defined]
        if at is not None:
            app.runtime.flusher.stop()  # on a slow machine it would add commits of its own, and another be the n-th
        self.apps.append(app)
        return app

    def do(self, what: str) -> None:
        """An effect on the outside."""
        self.effects[what] += 1

    def lapse(self) -> None:
        """The dead process' lease runs out."""
        self.clock.advance(31)

    def record(self, flow: str, key: str) -> Record:
        """A flow's run, or a guarded function's claim."""
        both = self.engine.fetch([address_of("default", flow, key, kind) for kind in ("run", "claim")])
        (found,) = [found.record for found in both if found.record is not None]
        return found

    def entries(self, flow: str, key: str) -> dict[str, Entry]:
        page = self.engine.scan("step", address_of("default", flow, key).space, None, None, 1_000)
        return {record.at.key: entry_of(record) for record in page.records}

    def close(self) -> None:
        for app in self.apps:
            app.runtime.flusher.stop()
            app._heartbeat.stop()


class Style:
    """The same flow as `def` and as `async def`."""

    def __init__(self, name: str) -> None:
        self.is_async = name != "def"

    def step(self, app: App, body: Callable[..., Any], **options: Any) -> Any:
        options = {"name": body.__name__, **options}
        return app.step(**options)(_awaiting(body) if self.is_async else body)

    def flow(self, app: App, steps: Callable[[Any], Any], **options: Any) -> Any:
        """`steps` is a generator over calls: each yielded value is awaited or taken as it is."""
        options = {"key": "order:{order}", "name": "sync", **options}
        made = app.flow(**options)(_awaited_flow(steps) if self.is_async else _plain_flow(steps))
        return Called(made) if self.is_async else made


class Called:
    """An `async def` flow, called from where there is no loop."""

    def __init__(self, flow: Any) -> None:
        self.flow = flow.flow
        self._flow = flow

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return asyncio.run(self._flow(*args, **kwargs))

    def retry(self, *args: Any, **kwargs: Any) -> Any:
        async def call() -> Any:
            return await self._flow.retry(*args, **kwargs)

        return asyncio.run(call())


def _awaiting(body: Callable[..., Any]) -> Callable[..., Any]:
    async def work(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return body(*args, **kwargs)

    work.__signature__ = inspect.signature(body)  # type: ignore[attr-defined]
    work.__annotations__ = body.__annotations__
    work.__name__ = body.__name__
    return work


def _plain_flow(steps: Callable[[Any], Any]) -> Callable[..., Any]:
    def flow(order: Any) -> Any:
        calls = steps(order)
        answer = None
        try:
            while True:
                answer = calls.send(answer)
        except StopIteration as end:
            return end.value

    return flow


def _awaited_flow(steps: Callable[[Any], Any]) -> Callable[..., Any]:
    async def flow(order: Any) -> Any:
        calls = steps(order)
        try:
            asked = calls.send(None)
            while True:
                try:
                    answer = await asked if inspect.isawaitable(asked) else asked
                except Exception as error:  # noqa: BLE001 - the flow is told
                    asked = calls.throw(error)
                else:
                    asked = calls.send(answer)
        except StopIteration as end:
            return end.value

    return flow
