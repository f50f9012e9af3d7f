"""Several waits of one run at once, under `app.gather`: none is slept through, whichever ends first."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.flows.stage import Stage, Style
from tests.unit.flows.waits import deliver, park, process, token_of, work
from twiceproof import App, ResultTypeWarning, WaitTimedOut


def together(app: App, style: Style, *calls: Any) -> Any:
    def steps(order: int) -> Any:
        return (yield app.gather(*[call() if style.is_async else call for call in calls]))

    return style.flow(app, steps)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_two_waits_at_once_end_in_any_order(stage: Stage, style: Style, order: tuple[str, str]) -> None:
    app = process(stage)
    sync = together(app, style, lambda: app.wait_for("a"), lambda: app.wait_for("b"))
    for name in order:
        park(sync)
        assert deliver(app, name.upper(), name).first
        assert stage.record("sync", "order:1").due_at is not None
    assert sync(1) == ["A", "B"]


@pytest.mark.parametrize("name", ["a", "b"])
def test_what_arrives_for_either_while_the_run_lies_down_is_not_slept_through(
    stage: Stage, style: Style, name: str
) -> None:
    app, other = process(stage), process(stage)
    sync = together(app, style, lambda: app.wait_for("a"), lambda: app.wait_for("b"))
    engine: Any = app.engine  # type: ignore[attr-defined]
    commit = engine.commit

    def meddling(batches: Any) -> Any:
        if any(getattr(write, "state", "") == "waiting" for batch in batches for write in batch.writes):
            engine.commit = commit
            deliver(other, "x", name)
        return commit(batches)

    engine.commit = meddling
    park(sync)
    assert stage.record("sync", "order:1").state == "queued"
    assert work(app) == 1
    assert stage.record("sync", "order:1").state == "waiting"


def test_the_shorter_time_out_wakes_the_run_and_the_other_wait_goes_on(stage: Stage, style: Style) -> None:
    app = process(stage)
    sync = together(
        app, style, lambda: app.wait_for("a", timeout="1h", default="none"), lambda: app.wait_for("b", timeout="2h")
    )
    park(sync)
    stage.clock.advance(3_601)
    park(sync)
    deliver(app, "B", "b")
    assert sync(1) == ["none", "B"]


def test_a_remote_job_and_an_approval_at_once(stage: Stage, style: Style) -> None:
    urls: list[str] = []
    app = process(stage)

    def start(url: str) -> None:
        urls.append(url)

    def job() -> Any:
        return app.remote(start=start, callback="job", timeout="1d")

    def approval() -> Any:
        return app.approve("charge", show=7, timeout="1d")

    sync = together(app, style, job, approval)
    park(sync)
    (asked,) = app.approvals()
    app.decide(asked.id, True, by="ann")
    park(sync)
    app.deliver(token_of(urls[0]), "done")
    with pytest.warns(ResultTypeWarning, match="Annotate it"):
        result, decision = sync(1)
    assert (result, decision["by"]) == ("done", "ann")
    assert len(urls) == 1


def test_an_unknown_start_does_not_keep_the_others_from_waiting(stage: Stage, style: Style) -> None:
    app = process(stage)
    urls: list[str] = []

    def start(url: str) -> None:
        urls.append(url)
        raise TimeoutError("no answer")

    def job() -> Any:
        return app.remote(start=start, callback="job", timeout="1d")

    sync = together(app, style, job, lambda: app.wait_for("b", timeout="1h"))
    park(sync)
    app.deliver(token_of(urls[0]), "done")
    stage.clock.advance(3_601)
    with pytest.raises(WaitTimedOut):
        sync(1)
    assert len(urls) == 1
