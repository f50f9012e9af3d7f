"""A function in a forked child: what it prints, and what it imports."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

import pytest

from twiceproof.effects import http_client
from twiceproof.prove.child import in_child


def test_what_a_play_prints_is_no_part_of_the_answer(capfd: pytest.CaptureFixture[str]) -> None:
    print("answer")
    for _ in range(2):
        in_child(lambda: [print("by Python"), os.write(1, b"by a program\n")] and 1, int, aloud=False)
    assert capfd.readouterr() == ("answer\n", "")


def test_of_one_scenario_alone_it_is_shown_beside_the_answer(capfd: pytest.CaptureFixture[str]) -> None:
    in_child(lambda: [print("by Python"), os.write(1, b"by a program\n")] and 1, int)
    out, err = capfd.readouterr()
    assert (out, sorted(err.splitlines())) == ("", ["by Python", "by a program"])


def imports(*names: str) -> list[str]:
    """Import modules in a child, and return those that it did not find imported."""

    def work() -> list[str]:
        new = [name for name in names if name not in sys.modules]
        for name in new:
            import_module(name)
        return new

    return in_child(work, list[str])


def test_what_one_child_had_to_import_the_next_finds_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "this_is_unused", raising=False)
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    assert imports("colorsys") == ["colorsys"]
    assert imports("colorsys") == []


def test_a_module_of_the_user_is_imported_in_children_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may connect to something, which only a child is kept from."""
    (tmp_path / "module_of_a_user.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        assert imports("module_of_a_user") == ["module_of_a_user"]
    assert "module_of_a_user" not in sys.modules


def test_after_one_child_has_sent_requests_the_others_read_no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[bool] = []
    monkeypatch.setattr("twiceproof.prove.child.prepare_requests", lambda: prepared.append(True))
    for name in [one for one in sys.modules if one.partition(".")[0] == "httpcore2"]:
        monkeypatch.delitem(sys.modules, name)
    imports("colorsys")
    assert prepared == []
    imports("httpcore2")
    assert prepared == [True]
    assert http_client._certificates() is http_client._certificates()
