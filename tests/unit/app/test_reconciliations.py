"""`@app.reconcile`: one run per tick, also when clocks change; and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from threading import Barrier

import pytest

from tests.unit.flows.stage import Stage
from twiceproof import App, Busy, Misuse
from twiceproof.flows.triggers.schedule import Daily, make_ticks


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()


def declared(app: App, read: list[float], **options) -> App:
    @app.reconcile(**{"every": "1d", "at": "03:00", "grace": "0s", **options})
    def nightly(find):
        read.append(find.tick.timestamp())
        yield find.duplicates(find.source("rows", [{"id": 1}], key="{id}", id="{id}"))

    return app


def test_two_workers_and_a_clock_that_jumps_make_one_run_per_tick(stage):
    read: list[float] = []
    apps = [declared(stage.process(), read) for _ in range(2)]
    for app in apps:
        app.worker().run(until_idle=True)
    assert read == []
    for jump in (86_400, 0, 86_400, 3_600, 0):
        stage.clock.advance(jump)
        for app in apps:
            app.worker().run(until_idle=True)
    runs = apps[0].runs(flow="nightly")
    assert [run.state for run in runs] == ["done", "done"]
    assert {datetime.fromisoformat(run.key).hour for run in runs} == {3}


def test_eight_reconcilers_at_once_make_one_run_per_tick(tmp_path):
    """Threads with an app of their own each, on one file: none waits for another, and one of them compares."""
    read: list[float] = []
    tick = datetime(2026, 10, 25, 2, 0, tzinfo=UTC)  # the night in which clocks go back
    apps = [declared(App(f"sqlite:///{tmp_path}/ledger.db"), read) for _ in range(8)]
    begin = Barrier(8)

    def reconcile(app: App) -> str:
        begin.wait(10)
        try:
            return f"done {app.reconcile_now('nightly', tick=tick).tick}"
        except Busy:
            return "busy"

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(reconcile, apps))
    assert set(told) <= {f"done {tick.timestamp()}", "busy"} and f"done {tick.timestamp()}" in told
    assert [run.state for run in apps[0].runs(flow="nightly")] == ["done"]
    assert len(read) == 1
    for app in apps:
        app.close()


def test_a_run_that_waits_is_not_overlapped_by_the_next_tick(stage):
    rows = [{"id": 1}, {"id": 2}]
    app = stage.process()

    @app.reconcile(every="1d", grace="30h")
    def nightly(find):
        yield find.duplicates(find.source("rows", rows, key=lambda row: "one", id="{id}"))

    app.worker().run(until_idle=True)
    stage.clock.advance(86_400)
    app.worker().run(until_idle=True)
    assert [run.state for run in app.runs(flow="nightly")] == ["waiting"]
    stage.clock.advance(86_400)
    app.worker().run(until_idle=True)
    assert len(app.runs(flow="nightly")) == 1
    stage.clock.advance(86_400)
    app.worker().run(until_idle=True)
    assert "done" in [run.state for run in app.runs(flow="nightly")]
    assert len(app.findings()) == 1


def utc(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def test_a_time_of_day_comes_once_a_day_also_when_clocks_change():
    spring, autumn = Daily("02:30", "Europe/Berlin"), Daily("02:30", "Europe/Berlin")
    assert spring.after(utc("2026-03-28T02:00")) == utc("2026-03-29T01:00")  # 02:30 is left out: 03:00 there
    assert spring.after(utc("2026-03-29T01:00")) == utc("2026-03-30T00:30")
    assert autumn.after(utc("2026-10-24T01:00")) == utc("2026-10-25T00:30")  # the first of the two
    assert autumn.after(utc("2026-10-25T00:30")) == utc("2026-10-26T01:30")
    assert Daily("03:00", "UTC").after(utc("2026-01-01T03:00")) == utc("2026-01-02T03:00")


def test_declarations_that_cannot_be_meant_are_refused(stage):
    app = stage.process()
    for options in ({"every": "1h", "at": "03:00"}, {"at": "25:00"}, {"at": "3"}, {"grace": "soon"}, {"most": 0}):
        with pytest.raises(Misuse):
            declared(app, [], **options)
    with pytest.raises(Misuse, match="yield"):
        app.reconcile(name="none")(lambda find: [])
    with pytest.raises(Misuse):
        app.reconcile(declared)  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="those that are declared: none"):
        stage.process().reconcile_now("nightly")
    assert make_ticks("1d", "UTC").after(0.0) == 86_400.0


def test_findings_by_a_state_that_is_none_are_refused(stage):
    with pytest.raises(Misuse, match="no state of a finding"):
        stage.process().findings(state="shut")
