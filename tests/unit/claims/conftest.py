"""Apps over the memory store and real SQLite files, each with a clock that only the test moves."""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from twiceproof import App
from twiceproof.claims.claim import Claim, Held, address_of
from twiceproof.claims.manager import ClaimManager
from twiceproof.claims.states import ClaimRequest, claim_for
from twiceproof.operations import block
from twiceproof.prove.clocks import ManualClock
from twiceproof.prove.faulty_engine import FaultyEngine
from twiceproof.records import Address, Record
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine

AT = address_of("default", "pay", "order:1")


class MeddledEngine(FaultyEngine):
    """Between a commit and its answer, something happens: the process is paused, or somebody else writes."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.after: Callable[[], object] | None = None

    def commit(self, batches: Any) -> Any:
        answers = super().commit(batches)
        after, self.after = self.after, None
        if after is not None:
            after()
        return answers


class Desk:
    """Claims over a memory store that can be meddled with, and short words for what tests do all the time."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.engine = MeddledEngine(MemoryEngine(clock))
        self.store = GroupedStore(self.engine, clock=clock)
        self.claims = ClaimManager(self.store, clock=clock)

    def ask(self, owner: str = "ann", **changes: Any) -> ClaimRequest:
        given = {"at": AT, "operation": "pay", "key": "order:1", "owner": owner, "lease": 30.0, "run": "run_1"}
        return ClaimRequest(**{**given, **changes})

    def take(self, owner: str = "ann", **changes: Any) -> Any:
        return block(self.claims.take(self.ask(owner, **changes)))

    def held(self, owner: str = "ann", **changes: Any) -> tuple[Held, Claim]:
        """A claim that was taken for sure, and its body."""
        held = self.take(owner, **changes)
        assert isinstance(held, Held), held
        return held, claim_for(self.ask(owner, **changes), held.attempt)

    def record(self, at: Address = AT) -> Record | None:
        return self.store.read(at).block().record

    def run(self, operation: Any) -> Any:
        return block(operation)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def desk(clock: ManualClock) -> Iterator[Desk]:
    made = Desk(clock)
    yield made
    made.store.close()


@pytest.fixture
def meddled(clock: ManualClock) -> Iterator[tuple[App, MeddledEngine]]:
    """An app whose store can be told to lose acknowledgements."""
    engine = MeddledEngine(MemoryEngine(clock))
    with App(GroupedStore(engine, clock=clock), clock=clock) as app:
        yield app, engine


@pytest.fixture
def memory(clock: ManualClock) -> Iterator[App]:
    with App("memory://", clock=clock) as app:
        yield app


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Any) -> Iterator[App]:
    """The file is real; that it survives a power cut is not these tests' subject, and costs a sync per commit."""
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/claims.db?durability=process"
    with App(url, clock=clock) as made:
        yield made


class Style:
    """The same guarded function as `def` and as `async def`, called from where it does not matter."""

    def __init__(self, name: str) -> None:
        self.name = name

    def once(self, app: App, body: Callable[..., Any], **options: Any) -> Any:
        """Guard `body`, a plain function; its signature and annotations are the guarded function's."""
        options = {"key": "order:{order}", "name": "pay", **options}
        if self.name == "def":
            return app.once(**options)(body)
        guarded = app.once(**options)(_awaiting(body))
        return _Blocking(guarded)


class _Blocking:
    def __init__(self, guarded: Any) -> None:
        self.guarded = guarded
        self.key = guarded.key
        self.once = guarded.once

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return asyncio.run(self.guarded(*args, **kwargs))

    def look(self, *args: Any, **kwargs: Any) -> Any:
        return asyncio.run(self.guarded.look(*args, **kwargs))

    def retry(self, *args: Any, **kwargs: Any) -> Any:
        return asyncio.run(self.guarded.retry(*args, **kwargs))


def _awaiting(body: Callable[..., Any]) -> Callable[..., Any]:
    async def work(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return body(*args, **kwargs)

    work.__signature__ = inspect.signature(body)  # type: ignore[attr-defined]
    work.__annotations__ = typing.get_type_hints(body)
    return work


@pytest.fixture(params=["def", "async def"])
def style(request: pytest.FixtureRequest) -> Style:
    return Style(request.param)
