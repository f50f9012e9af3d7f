"""Large values: kept in the store, in a directory or in a bucket, passed by reference, gone when their run goes.

The bucket is that of moto's server, which speaks S3; no other S3 service was tried.
"""

from __future__ import annotations

import asyncio
import io
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.moto import moto_server
from tests.unit.flows.stage import Died, DyingEngine
from twiceproof import App, Misuse, Resource, ResultNotKept, StoreUnavailable, ValueRefused
from twiceproof.claims.blobs import BlobStore, open_blob_store, path_of, run_of
from twiceproof.claims.blobs.records import DAY, load, orphans, remove_orphans
from twiceproof.claims.retention import sweep
from twiceproof.flows.workers.due_work import resume_run
from twiceproof.operations import block
from twiceproof.prove.clocks import ManualClock
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine

BIG = "x" * 100_000
BYTES = bytes(range(256)) * 1_000


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with moto_server() as endpoint:
        import boto3

        boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket="shop")
        yield f"s3://shop/ledger?endpoint={endpoint}&region=us-east-1"


@pytest.fixture(params=["store", "dir", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return str(request.getfixturevalue("bucket")).replace("ledger", tmp_path.name)  # nothing of the others
    return "" if request.param == "store" else f"dir://{tmp_path}/resources"


class World:
    """Processes that share a store, a clock and a place for resources."""

    def __init__(self, place: str) -> None:
        self.clock = ManualClock()
        self.engine = MemoryEngine(self.clock)
        self.place = place
        self.apps: list[App] = []

    def process(self) -> App:
        engine = DyingEngine(self.engine)
        app = App(GroupedStore(engine, clock=self.clock), clock=self.clock, resources=self.place)
        app.engine = engine  # type: ignore[attr-defined]
        self.apps.append(app)
        return app

    def on_shelf(self) -> list[str]:
        return [kept.path for kept in open_blob_store(self.place).listing()] if self.place else []

    def close(self) -> None:
        for app in self.apps:
            app.runtime.flusher.stop()
            app._heartbeat.stop()


@pytest.fixture
def world(place: str) -> Iterator[World]:
    made = World(place)
    yield made
    made.close()


def reporting(app: App, **options: Any) -> Any:
    @app.step(repeat="safe")
    def render(order: int) -> Resource:
        made: Resource = app.resource(BYTES, name="report.pdf", media_type="application/pdf")
        return made

    @app.step(repeat="safe")
    def count(report: Resource) -> int:
        return len(report.read())

    @app.flow(key="order:{order}", **options)
    def report(order: int) -> Resource:
        made = render(order)
        assert count(made) == len(BYTES)
        return made

    return report


# -- by reference ----------------------------------------------------------------------------------


def test_a_resource_is_passed_by_reference_and_read_anywhere(world: World) -> None:
    app = world.process()
    made = reporting(app)(1)
    assert made.ref.startswith("res://run_")
    assert (made.size, made.name, made.media_type) == (len(BYTES), "report.pdf", "application/pdf")
    assert made.read(app) == BYTES
    again = world.process()
    assert reporting(again)(1) == made
    assert made.read(again) == BYTES
    with made.open(again) as file:
        assert file.read(3) == BYTES[:3]


def test_a_large_result_of_a_step_comes_back_as_it_was(world: World) -> None:
    def declare(app: App) -> Any:
        @app.step(repeat="safe")
        def draw(order: int) -> str:
            return BIG

        @app.flow(key="order:{order}")
        def sync(order: int) -> str:
            text = draw(order)
            app.sleep("1d") if order == 2 else None
            return text + "!"

        return sync

    assert declare(world.process())(1) == BIG + "!"
    assert declare(world.process())(1) == BIG + "!"


def test_a_large_input_is_kept_beside_its_run(world: World) -> None:
    def declare(app: App) -> Any:
        @app.flow(key="order:{order}")
        def sync(order: int, text: str) -> int:
            return len(text)

        return sync

    large = "y" * 300_000
    handle = declare(world.process()).start(1, large)
    worker = world.process()
    flow = declare(worker).flow
    for record in worker.store.due("run", queues=flow.queues).block().records:
        block(resume_run(flow, record))
    assert handle.result(timeout=5) == 300_000
    assert declare(world.process())(1, large) == 300_000
    (kept,) = worker.store.scan("resource").block().records
    assert kept.due_at is None  # it stays as long as its run


def sizes(app: App, **options: Any) -> Any:
    @app.flow(key="order:{order}", keep="1d", **options)
    def sync(order: int, text: str) -> int:
        return len(text)

    return sync


@pytest.mark.parametrize("text", ["y" * 300_000, "z" * 400_000], ids=["the same input", "another input"])
@pytest.mark.parametrize("way", ["call", "start", "call in turn"])
def test_a_key_whose_time_is_over_and_that_no_sweep_has_met_takes_a_large_input(
    world: World, way: str, text: str
) -> None:
    """The new input is there before its run; it must not be cleared away with what the old run left."""
    options = {"limit": 1} if way == "call in turn" else {}
    assert sizes(world.process(), **options)(1, "y" * 300_000) == 300_000
    world.clock.advance(2 * 86_400.0)
    app = world.process()
    sync = sizes(app, **options)
    if way == "start":
        handle = sync.start(1, text)
        app.worker().run(until_idle=True)
        assert handle.result(timeout=5) == len(text)
    else:
        assert sync(1, text) == len(text)
    (kept,) = app.store.scan("resource").block().records
    assert kept.due_at is None


def test_a_sweep_between_an_input_and_its_run_leaves_the_input(world: World) -> None:
    """Another process sweeps what the old run left, while this one is about to begin the new one."""
    assert sizes(world.process())(1, "y" * 300_000) == 300_000
    world.clock.advance(2 * 86_400.0)
    app = world.process()
    sync = sizes(app)
    block(sync.flow.request((1, "z" * 400_000), {}))
    assert block(sweep(world.process().store)).forgotten == 1
    (kept,) = app.store.scan("resource").block().records
    with block(load(kept)) as file:
        assert b"z" * 400_000 in file.read()
    assert sync(1, "z" * 400_000) == 400_000
    world.clock.advance(2 * 86_400.0)
    block(sweep(app.store))
    assert list(app.store.scan("resource").block().records) == []
    assert world.on_shelf() == []


def test_an_input_without_a_run_is_swept(world: World) -> None:
    app = world.process()

    @app.flow(key="order:{order}")
    def sync(order: int, text: str) -> int:
        return len(text)

    with pytest.raises(Died):
        kill_after_first(app)
        sync(1, "y" * 300_000)
    other = world.process()
    assert len(other.store.scan("resource").block().records) == 1
    world.clock.advance(31 * DAY)
    block(sweep(other.store))
    assert other.store.scan("resource").block().records == []
    assert world.on_shelf() == []


def kill_after_first(app: App) -> None:
    engine: Any = app.engine  # type: ignore[attr-defined]
    engine.at, engine.landed = 1, True


def test_an_input_that_is_too_large_for_the_store_is_refused_before_anything_is_done() -> None:
    world = World("")
    app = world.process()

    @app.flow(key="order:{order}")
    def sync(order: int, text: str) -> int:
        return len(text)

    with pytest.raises(ValueRefused, match="bytes of input"):
        sync(1, "y" * 9_000_000)
    assert app.store.scan("resource").block().records == []
    world.close()


def test_a_result_that_is_too_large_for_the_store_fits_on_a_shelf(tmp_path: Path) -> None:
    world = World(f"dir://{tmp_path}/resources")

    def declare(app: App) -> Any:
        @app.step(repeat="safe")
        def draw(order: int) -> str:
            return "z" * 9_000_000

        @app.flow(key="order:{order}")
        def sync(order: int) -> int:
            return len(draw(order))

        return sync

    assert declare(world.process())(1) == 9_000_000
    world.close()


@pytest.mark.parametrize("kind", ["bytes", "text", "path", "file"])
def test_what_a_resource_can_be_made_of(world: World, tmp_path: Path, kind: str) -> None:
    app = world.process()
    (tmp_path / "source").write_bytes(b"hello")
    sources: dict[str, Any] = {
        "bytes": b"hello",
        "text": "hello",
        "path": tmp_path / "source",
        "file": io.BytesIO(b"hello"),
    }

    @app.step(repeat="safe")
    def make(order: int) -> Resource:
        return app.resource(sources[kind])

    @app.flow(key="order:{order}")
    def sync(order: int) -> str:
        return make(order).text()

    assert sync(1) == "hello"


def test_awaited_steps_await_their_resources(world: World) -> None:
    app = world.process()

    @app.step(repeat="safe")
    async def make(order: int) -> Resource:
        return await app.resource("hello")

    @app.step(repeat="safe")
    async def use(made: Resource) -> str:
        return await made.text()

    @app.flow(key="order:{order}")
    async def sync(order: int) -> list[str]:
        made = await make(order)
        return [await use(made), await made.text()]

    assert asyncio.run(sync(1)) == ["hello", "hello"]


def test_outside_a_run_a_resource_carries_its_value(world: World) -> None:
    app = world.process()
    made = app.resource(b"hello")
    assert made.ref.startswith("data:")
    assert made.read() == b"hello"
    assert world.on_shelf() == []


def test_the_same_value_twice_in_a_step_is_one_resource(world: World) -> None:
    app = world.process()

    @app.step(repeat="safe")
    def make(order: int) -> list[Resource]:
        return [app.resource(b"hello"), app.resource(b"hello"), app.resource(b"other")]

    @app.flow(key="order:{order}")
    def sync(order: int) -> list[str]:
        return [made.text() for made in make(order)]

    assert sync(1) == ["hello", "hello", "other"]
    assert len(app.store.scan("resource").block().records) == 2


# -- what is refused -------------------------------------------------------------------------------


def test_outside_a_flow_one_must_say_in_which_app(world: World) -> None:
    made = reporting(world.process())(1)
    with pytest.raises(Misuse, match=r"read\(app\)"):
        made.read()


def test_what_is_no_value_is_refused(world: World) -> None:
    with pytest.raises(Misuse, match="bytes, text, a path or a file"):
        world.process().resource({"a": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["ftp://x/y", "dir://relative", "s3://", "s3://user:secret@bucket", "s3://b?x=1"])
def test_a_place_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(Misuse):
        App("memory://", resources=url)


def test_a_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    world = World(f"dir://{tmp_path}/resources")
    app = world.process()
    made = reporting(app)(1)
    (file,) = (tmp_path / "resources").rglob("*.res")
    file.write_bytes(b"something else")
    with pytest.raises(ResultNotKept, match="not what was put there"):
        made.read(app)
    file.unlink()
    with pytest.raises(ResultNotKept, match="is gone"):
        made.read(app)
    world.close()


def test_a_directory_that_is_not_mounted_says_nothing_about_what_is_in_it(tmp_path: Path) -> None:
    """Missing for a moment is not gone: the run must not fail for it."""
    world = World(f"dir://{tmp_path}/resources")
    app = world.process()
    made = reporting(app)(1)
    (tmp_path / "resources").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreUnavailable):
        made.read(app)
    (tmp_path / "elsewhere").rename(tmp_path / "resources")
    assert made.read(app) == BYTES
    world.close()


# -- files -----------------------------------------------------------------------------------------


def test_files_are_their_owners_only_and_never_half(tmp_path: Path) -> None:
    shelf = open_blob_store(f"dir://{tmp_path}/shelf")
    shelf.put("run_a/x.res", io.BytesIO(b"old"))
    assert stat.S_IMODE((tmp_path / "shelf/run_a/x.res").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "shelf/run_a").stat().st_mode) == 0o700
    with pytest.raises(ZeroDivisionError):
        shelf.put("run_a/x.res", Broken())
    assert (tmp_path / "shelf/run_a/x.res").read_bytes() == b"old"
    assert [path.name for path in (tmp_path / "shelf/run_a").iterdir()] == ["x.res"]


class Broken(io.BytesIO):
    """Gives out something, then fails."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell():
            raise ZeroDivisionError
        self.seek(1)
        return b"half"


def test_a_shelf_that_fails_does_not_lose_what_was_done(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    world = World(f"dir://{tmp_path}/file/resources")

    def declare(app: App) -> Any:
        @app.step
        def draw(order: int) -> str:
            return BIG

        @app.flow(key="order:{order}")
        def sync(order: int) -> int:
            return len(draw(order))

        return sync

    assert declare(world.process())(1) == len(BIG)
    (kept,) = world.process().store.scan("resource").block().records
    assert kept.state == ""
    world.close()


@pytest.mark.parametrize("length", [5, 199, 200, 201, 1_900])
def test_from_a_path_one_finds_the_run(length: int) -> None:
    run = "r" * length
    path = path_of(run, "some key")
    assert run_of(path) == run
    assert all(len(part) <= 200 for part in path.split("/"))


# -- forgetting ------------------------------------------------------------------------------------


def test_resources_go_when_their_run_is_forgotten(world: World) -> None:
    app = world.process()
    reporting(app, keep="1d")(1)
    reporting(app, keep="1d")(2)
    assert len(world.on_shelf()) == (2 if world.place else 0)
    world.clock.advance(2 * DAY)
    while block(sweep(app.store)).total:
        world.clock.advance(61)
    assert app.store.scan("resource").block().records == []
    assert world.on_shelf() == []


def test_resources_of_a_run_that_is_kept_stay(world: World) -> None:
    app = world.process()
    made = reporting(app, keep="30d")(1)
    world.clock.advance(2 * DAY)
    block(sweep(app.store))
    assert made.read(app) == BYTES


@pytest.mark.parametrize("place", ["dir", "s3"], indirect=True)  # in the store, a resource and its record are one
def test_orphans_of_crashed_attempts_are_found_and_removed_after_a_day(place: str) -> None:
    world = World(place)
    app = world.process()
    made = reporting(app)(1)
    shelf: BlobStore = open_blob_store(place)
    path = path_of(made.ref.split("/")[2], "an attempt that crashed")
    shelf.put(path, io.BytesIO(b"lost"))
    shelf.put("run_nonsense/x.res", io.BytesIO(b"nobody's"))
    changed = max(kept.changed_at for kept in shelf.listing())
    assert block(orphans(app.store, shelf, changed + 60)) == []
    lost = block(orphans(app.store, shelf, changed + DAY + 60))
    assert {kept.path for kept in lost} == {path, "run_nonsense/x.res"}
    assert block(remove_orphans(app.store, shelf, changed + DAY + 60)) == 2
    assert made.read(app) == BYTES
    world.close()


@pytest.mark.parametrize("place", ["dir", "s3"], indirect=True)
def test_what_others_keep_in_the_same_place_is_no_orphan(place: str) -> None:
    """The ledger itself, for one: of a database that is in use, the file itself may be days old."""
    world = World(place)
    app = world.process()
    shelf: BlobStore = open_blob_store(place)
    for path in ("shop.db", "README", "photos/cat.res", "run_up.log"):
        shelf.put(path, io.BytesIO(b"not ours"))
    shelf.put("run_nonsense/.half-x", io.BytesIO(b"ours, and of no use"))
    changed = max(kept.changed_at for kept in shelf.listing())
    assert [kept.path for kept in block(orphans(app.store, shelf, changed + DAY + 60))] == ["run_nonsense/.half-x"]
    world.close()


# -- forks ------------------------------------------------------------------------------------------


def test_a_fork_owns_its_large_values_wherever_they_are_kept(world: World) -> None:
    app = world.process()

    @app.step(repeat="safe")
    def fetch(text: str) -> dict[str, str]:
        return {"page": BIG}

    @app.step(repeat="safe")
    def count(page: dict[str, str]) -> int:
        return len(page["page"])

    @app.flow(key="order:{order}", name="sync", keep="1d")
    def sync(order: int, text: str) -> int:
        return len(text) + count(fetch(text))

    assert sync(1, "y" * 300_000) == 400_000
    forked = app.fork_run("sync/order:1", key="order:2", from_step="count")
    world.clock.advance(DAY)
    block(sweep(app.store))  # the first is forgotten, and takes its own along
    app.worker().run(until_idle=True)
    assert app.attach(forked.run).result() == 400_000
    world.clock.advance(DAY)
    block(sweep(app.store))
    assert app.store.scan("resource").block().records == []
    assert world.on_shelf() == []
