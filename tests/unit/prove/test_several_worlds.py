"""Several worlds, looked at as one: what happens in one of them is not hidden by another."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from twiceproof import App
from twiceproof.cli.prove import WorldOptions
from twiceproof.prove.fixture import NotSafe, prove
from twiceproof.prove.worlds.files import Files
from twiceproof.prove.worlds.world import CallableWorld, Worlds

app = App("memory://")


@app.step(repeat="safe")  # it is not
def add_here(order: dict[str, Any]) -> None:
    with (Path(order["here"]) / "log.txt").open("a") as log:
        log.write("written\n")


@app.step(repeat="safe")
def write_there(order: dict[str, Any]) -> None:
    (Path(order["there"]) / "log.txt").write_text("written\n")


@app.flow(key="order:{order[id]}")
def in_both(order: dict[str, Any]) -> None:
    add_here(order)
    write_there(order)


@pytest.fixture
def both(tmp_path: Path) -> list[Path]:
    places = [tmp_path / "here", tmp_path / "there"]
    for place in places:
        place.mkdir()
    return places


def test_what_two_worlds_call_by_one_name_is_counted_in_both() -> None:
    worlds = Worlds([CallableWorld(lambda: ["sent", "sent"]), CallableWorld(lambda: ["sent"])])
    assert worlds.look() == {"sent": 3}


def test_files_of_two_directories_are_told_apart(both: list[Path]) -> None:
    (both[0] / "log.txt").write_text("written\n")
    with ExitStack() as stack:
        worlds = Worlds(WorldOptions(files=tuple(map(str, both))).open(stack))
        assert worlds.look() == {f"{both[0]}/log.txt: written": 1}


def test_files_of_one_directory_are_named_within_it(both: list[Path]) -> None:
    (both[0] / "log.txt").write_text("written\n")
    with ExitStack() as stack:
        worlds = Worlds(WorldOptions(files=(str(both[0]),)).open(stack))
        assert worlds.look() == {"log.txt: written": 1}


@pytest.mark.slow
@pytest.mark.parametrize("turned", [False, True])
def test_a_repeat_in_one_of_two_directories_is_seen_whichever_is_named_first(both: list[Path], turned: bool) -> None:
    worlds = [Files(place) for place in (reversed(both) if turned else both)]
    order = {"id": 1, "here": str(both[0]), "there": str(both[1])}
    with pytest.raises(NotSafe):
        prove(in_both, order, world=Worlds(worlds), depth=1)
