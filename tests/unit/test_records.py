"""Kinds of records: each is registered by the module that writes it, so that no sweep or key rotation misses one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from twiceproof.records import expiring_kinds, kinds_beside_runs, record_kind

SRC = Path(__file__).parents[2] / "src" / "twiceproof"
SHOW = "import json; from twiceproof.records import RECORD_KINDS; print(json.dumps(list(RECORD_KINDS)))"
SERVER_ONLY = {"token", "signing"}  # never due, and never beside a run
NEVER_STORED = {"probe", "doctor"}  # read to try a store out


def kinds_after(code: str) -> set[str]:
    told = subprocess.run([sys.executable, "-c", f"{code}\n{SHOW}"], capture_output=True, text=True, check=True)
    return set(json.loads(told.stdout))


def sources() -> str:
    return "\n".join(path.read_text() for path in SRC.rglob("*.py") if "prove" not in path.parts)


def registered() -> set[str]:
    return set(re.findall(r'record_kind\(\s*"([a-z-]+)"', sources()))


def test_every_kind_of_record_is_registered() -> None:
    """A kind that is written as a bare text would never be swept, nor encrypted with a new key."""
    bare = set(re.findall(r'\b(?:\w+_)?(?:KIND|LOCK) = (?:"[^"]*", )?"([a-z-]+)"', sources()))
    bare |= set(re.findall(r'Address\([^()\n]+, "([a-z-]+)", ', sources()))
    assert bare <= NEVER_STORED
    assert {"run", "claim", "step", "token", "signing", "undo", "external"} <= registered()


def test_an_app_knows_every_kind_that_is_swept() -> None:
    """Its sweep must know the kinds of modules that its own program never calls."""
    assert kinds_after("from twiceproof import App") == registered() - SERVER_ONLY


def test_commands_that_sweep_or_rotate_know_every_kind() -> None:
    loading = "from twiceproof.cli.target import load_record_kinds; load_record_kinds()"
    assert kinds_after(loading) == registered()


def test_kinds_are_told_apart_by_how_they_are_removed() -> None:
    from twiceproof import App  # noqa: F401 - loads every owner

    assert set(kinds_beside_runs()) == {"step", "arrival", "approval", "evidence", "resource", "undo"}
    swept = {"run", "claim", "evidence", "resource", "link", "dead-letter", "mark", "duplicates", "notice", "worker"}
    swept |= {"external", "callback", "runid", "message", "finding", "tail", "act", "session", "form", "login"}
    assert set(expiring_kinds()) == swept
    assert expiring_kinds()[0] == "run"  # with what lies beside it, before that is looked at by itself


def test_one_kind_has_one_meaning() -> None:
    with pytest.raises(ValueError, match="registered twice"):
        record_kind("run")
    with pytest.raises(ValueError, match="not the name of a kind"):
        record_kind("Run record")
