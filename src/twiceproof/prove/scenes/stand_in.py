"""Puts an app on another store and another clock, for as long as a play lasts. Its declarations stay as they are."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...app import App
from ...clock import Clock
from ...drive import Request
from ...errors import Misuse
from ...records import Address, Due, Found, Outcome, Page, Write
from ...stores.base import Finding, Store
from ...stores.watch import Watch
from .process import Process, process_var

__all__ = ["StandIn", "on_stage"]


class StandIn:
    """A store that is, for each caller, the store of the process that the caller belongs to."""

    def __init__(self) -> None:
        self.main: Process | None = None  # of threads that the flow itself began

    @property
    def _store(self) -> Store:
        process = process_var.get() or self.main
        if process is None:
            raise Misuse("The play has not begun, or is over; prove calls the flow itself.")
        return process.store

    @property
    def batch_limit(self) -> int:
        return self._store.batch_limit

    @property
    def best_effort(self) -> bool:
        return False  # a private store outlives the play

    @property
    def reads_first(self) -> bool:
        return self._store.reads_first

    def read(self, at: Address) -> Request[Found]:
        return self._store.read(at)

    def write(self, *writes: Write) -> Request[Outcome]:
        return self._store.write(*writes)

    def scan(self, kind: str, **where: Any) -> Request[Page]:
        return self._store.scan(kind, **where)

    def due(self, kind: str, *, queues: Collection[str], limit: int = 100, hide: float = 5.0) -> Request[Due]:
        return self._store.due(kind, queues=queues, limit=limit, hide=hide)

    def pause(self, space: str, seconds: float) -> Request[None]:
        return self._store.pause(space, seconds)

    def watch(self, places: Collection[str]) -> Watch:
        return self._store.watch(places)

    def examine(self) -> Sequence[Finding]:
        return self._store.examine()

    def close(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        """What SQL stores have besides (joins)."""
        return getattr(self._store, name)


@contextmanager
def on_stage(app: App, clock: Clock) -> Iterator[StandIn]:
    """Wherever the app and its parts hold their store and their clock, they hold these instead."""
    stand_in = StandIn()
    old = {id(app.store): stand_in, id(app.clock): clock}
    changed = [(part, name, value) for part in _parts(app) for name, value in vars(part).items() if id(value) in old]
    for part, name, value in changed:
        setattr(part, name, old[id(value)])
    try:
        yield stand_in
    finally:
        for part, name, value in changed:
            setattr(part, name, value)


def _parts(app: App) -> list[Any]:
    askings: list[Any] = [flow.asking for flow in app.flows.values()]
    askings += [once.asking for once in app.operations.values()]
    found = [app, app.claims, app.parts, app.tenants, app._housekeeper, app._heartbeat, *app.duties, *askings]
    return list({id(part): part for part in found}.values())
