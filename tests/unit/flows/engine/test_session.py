"""Only a session's own methods assign to its attributes: session.py shows every change of a run in progress."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest

import twiceproof
from twiceproof.flows.engine.ledger import EntryNote
from twiceproof.flows.engine.run_states import RunState

SOURCE = Path(twiceproof.__file__).parent
MODULES = sorted(path for part in ("flows", "app") for path in (SOURCE / part).rglob("*.py"))


def is_session(node: ast.expr) -> bool:
    """`session`, `self.session` or `self._session`."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.lstrip("_") == "session"


def assignments(source: str) -> list[int]:
    """The lines that set or delete an attribute of a session."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del) and is_session(node.value):
            found.append(node.lineno)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
            found += [node.lineno for each in node.args[:1] if is_session(each)]
    return found


def test_no_module_but_its_own_assigns_to_a_session() -> None:
    own = SOURCE / "flows" / "engine" / "session.py"
    found = {path.relative_to(SOURCE): assignments(path.read_text()) for path in MODULES if path != own}
    assert {str(path): lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "session.stop = None",
        "session.stop = session.broken_by = None",
        "session.slots, session.newer = taken.slots, taken.newer",
        "session.callers |= outer.callers",
        "session.crashed: bool = False",
        "self._session.open = False",
        "execution.session.work = work",
        "del session.stop",
        "for session.stop in stops: pass",
        "setattr(session, name, value)",
    ],
)
def test_an_assignment_to_a_session_is_seen(line: str) -> None:
    assert assignments(line)


@pytest.mark.parametrize("line", ["self._session = session", "session.hold.held = renewed", "stop = session.stop"])
def test_what_is_no_assignment_to_a_session_is_left_alone(line: str) -> None:
    assert not assignments(line)


def test_the_names_of_an_entry_in_ledgers_do_not_change() -> None:
    note = EntryNote("order=1", "keyed", ambiguous=True, unclassified=True, concurrent=True, unique=True)
    named = dict.fromkeys(("ambiguous", "unclassified", "concurrent", "unique"), True)
    stored = {"asked": "order=1", "repeat": "keyed", **named}
    assert msgspec.json.decode(msgspec.json.encode(note)) == stored
    assert msgspec.json.decode(msgspec.json.encode(stored), type=EntryNote) == note


def test_the_names_of_a_run_in_ledgers_do_not_change() -> None:
    work = RunState("2", crash_unresolved=True, start_id="1")
    stored = {"version": "2", "crash_unresolved": True, "start_id": "1"}
    assert msgspec.json.decode(msgspec.json.encode(work)) == stored
    assert msgspec.json.decode(msgspec.json.encode(stored), type=RunState) == work
