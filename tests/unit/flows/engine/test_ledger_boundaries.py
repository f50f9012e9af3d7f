"""Killed at every ledger boundary, and again at every boundary of the recovery: what the outside sees afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.flows.stage import Died, Stage
from twiceproof import Absent, App, Happened, NeedsReview, Retry, check

QUICK = Retry(attempts=9, first=0.01)
COMMITS = 5  # of a clean run: the take, and one per step; intents go along with the completion before them


def shop(stage: Stage, app: App) -> Any:
    """One step of each kind. The provider of `charge` knows its keys; the one of `invoice` can be asked."""

    @app.step(repeat="safe", retry=QUICK)
    def upsert(order: int) -> None:
        stage.do("upsert")

    @app.step(repeat="keyed", retry=QUICK)
    def charge(order: int) -> str:
        stage.effects["charge " + app.effect_key()] = 1
        return "ch_1"

    @app.step(repeat=check(lambda order: Happened("inv_1") if stage.effects["invoice"] else Absent, settling=0.0))
    def invoice(order: int) -> str:
        stage.do("invoice")
        return "inv_1"

    @app.step(repeat="never")
    def mail(order: int) -> None:
        stage.do("mail")

    @app.flow(key="order:{order}")
    def sync(order: int) -> list[str]:
        upsert(order)
        paid = charge(order)
        made = invoice(order)
        app.now()
        mail(order)
        return [paid, made]

    return sync


def kill(stage: Stage, at: int, landed: bool) -> bool:
    """Whether the process lived to be killed there."""
    try:
        shop(stage, stage.process(at, landed=landed))(1)
    except Died:
        return True
    except NeedsReview:
        return False
    finally:
        stage.lapse()
    return False


def outcome(stage: Stage) -> str:
    try:
        assert shop(stage, stage.process())(1) == ["ch_1", "inv_1"]
    except NeedsReview:
        return "review"
    return "done"


def check_world(stage: Stage, ended: str) -> None:
    charges = [what for what in stage.effects if what.startswith("charge")]
    assert len(charges) == 1, "a keyed effect is one to its provider"
    assert stage.effects["invoice"] == 1, "a checked effect happens once"
    assert stage.effects["mail"] <= 1, "an effect never to be repeated happens at most once"
    entry = stage.entries("sync", "order:1")["mail"]
    if ended == "done":
        assert stage.effects["mail"] == 1
        assert entry.state == "done"
    else:
        assert entry.state == "unknown", "only what really was ambiguous is in review"


@pytest.mark.parametrize("landed", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, COMMITS + 1))
def test_killed_at_every_boundary(stage: Stage, at: int, landed: bool) -> None:
    kill(stage, at, landed)
    check_world(stage, outcome(stage))


@pytest.mark.parametrize("landed", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, COMMITS + 1))
@pytest.mark.parametrize("again", range(1, COMMITS + 2))
def test_killed_again_at_every_boundary_of_the_recovery(stage: Stage, at: int, landed: bool, again: int) -> None:
    kill(stage, at, landed)
    kill(stage, again, not landed)
    kill(stage, again, landed)
    check_world(stage, outcome(stage))


def test_the_boundaries_are_all_there_are(stage: Stage) -> None:
    app = stage.process()
    shop(stage, app)(1)
    assert app.engine.commits == COMMITS  # type: ignore[attr-defined]
    reached = [kill(Stage(), at, False) for at in range(1, COMMITS + 1)]
    assert all(reached)


def test_without_the_intent_the_mail_would_go_out_twice(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the protection taken away, the fault must show."""
    from twiceproof.effects import repeat

    monkeypatch.setattr(repeat.Declared, "writes_intent", property(lambda self: False))
    seen = set()
    for at in range(1, COMMITS + 1):
        fresh = Stage()
        kill(fresh, at, False)
        outcome(fresh)
        seen.add(fresh.effects["mail"])
    assert 2 in seen
