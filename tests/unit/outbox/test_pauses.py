"""A paused target: no relay publishes to it, also after a restart, until it is resumed."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.outbox.test_relay import Stage
from twiceproof import App, Misuse
from twiceproof.brokers.base import Refused
from twiceproof.cli.main import cli
from twiceproof.operations import block
from twiceproof.outbox.pauses import list_pauses, pause_target, resume_target

GONE = Refused("410 Gone", away=True, gone=True)


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.relay.close()
    stage.app.close()


def test_a_target_that_wants_no_more_is_paused_for_every_relay_until_it_is_resumed(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.send("a", "b")
    stage.broker.always["a"] = stage.broker.always["b"] = GONE
    with caplog.at_level(logging.ERROR, "twiceproof.relay"):
        stage.until_idle()
    assert "twiceproof messages resume main" in caplog.text
    assert stage.states() == {"a": "pending", "b": "pending"}
    asked = len(stage.broker.asked)
    stage.broker.always.clear()
    another = stage.new_relay()  # another process, or the same after a restart
    for relay in (stage.relay, another):
        stage.clock.advance(4_000)
        stage.until_idle(relay)
    assert len(stage.broker.asked) == asked
    (paused,) = block(list_pauses(stage.app.store))
    assert (paused.target, paused.by, paused.why) == ("main", "relay", "410 Gone")
    block(resume_target(stage.app.store, "main"))
    stage.clock.advance(60)
    stage.until_idle(another)
    assert stage.states() == {"a": "sent", "b": "sent"}
    assert stage.message("a").starts == 0  # it was not counted against the messages
    another.close()


def test_a_person_pauses_a_target_and_a_relay_that_runs_notices(stage: Stage) -> None:
    stage.send("a")
    stage.until_idle()
    block(pause_target(stage.app.store, "main", by="ada", why="their migration"))
    again = block(pause_target(stage.app.store, "main", by="bob"))
    assert (again.by, again.why) == ("ada", "their migration")
    stage.clock.advance(5)
    stage.send("b")
    stage.until_idle()
    assert stage.broker.keys == ["a"]
    block(resume_target(stage.app.store, "main"))
    with pytest.raises(Misuse, match="not paused"):
        block(resume_target(stage.app.store, "main"))
    stage.clock.advance(60)
    stage.until_idle()
    assert stage.broker.keys == ["a", "b"]


def test_an_idle_relay_asks_about_pauses_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[object] = []
    read = stage.app.store.read
    monkeypatch.setattr(stage.app.store, "read", lambda at: (reads.append(at), read(at))[1])
    for _ in range(20):
        stage.until_idle()
        stage.clock.advance(10)
    assert len(reads) == 1


def test_the_commands_pause_show_and_resume(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    App(url).close()

    def run(*words: str) -> str:
        result = CliRunner().invoke(cli, ["messages", *words, "--store", url], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    assert "paused by ada: moving" in run("pause", "main", "--by", "ada", "--note", "moving")
    listed = run("list")
    assert "Resume it with: twiceproof" in listed
    assert "messages resume main" in listed
    (paused,) = json.loads(run("list", "--json"))["paused"]
    assert (paused["target"], paused["by"], paused["why"]) == ("main", "ada", "moving")
    assert "Publishing to main again" in run("resume", "main")
    assert json.loads(run("list", "--json"))["paused"] == []
