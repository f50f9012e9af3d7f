"""Importing the app that a command names."""

from __future__ import annotations

import pytest

from twiceproof import Misuse
from twiceproof.cli.load import load

from .workshop import APP, work


@pytest.mark.parametrize(
    ("name", "source", "told"),
    [
        ("workshop", "", "write it as module:attr"),
        ("workshop:", "", "write it as module:attr"),
        ("workshopping:app", "", "There is no module 'workshopping'"),
        ("./workshop:app", APP, "Name the module, not its file: workshop:app"),
        ("./workshop.py:app", APP, "Name the module, not its file: workshop:app"),
        ("workshop.py:app", APP, "Name the module, not its file: workshop:app"),
        (".workshop:app", APP, "Name the module, not its file: workshop:app"),
        ("in/the/workshop:app", APP, "Name the module, not its file: in.the.workshop:app"),
        ("..:app", APP, "write it as module:attr"),
        ("workshop:ap", APP, "has no 'ap'; try workshop:app"),
        ("workshop:count", APP, "is an int, not an App; try workshop:app"),
        ("workshop:x", "x = 'y'", "workshop has no App"),
        ("workshop:app", "from twiceproof import App\napp = App('memory://')", "declares no flows"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(here, name, source, told):
    (here / "workshop.py").write_text(source)
    result = work(name, "--until-idle", code=2)
    assert told in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (
            "import workshop_nowhere",
            "workshop.py:1: ModuleNotFoundError: No module named 'workshop_nowhere'); install it",
        ),
        ("x = 1\ndef y(:", "workshop.py:2: SyntaxError: invalid syntax); correct it"),
        ("def y():\n    return 1 / 0\ny()", "workshop.py:2: ZeroDivisionError: division by zero); correct it"),
        ("x = 1\nimport json\njson.loads('{')", "workshop.py:3: JSONDecodeError: Expecting property name"),
        ("raise ValueError", "workshop.py:1: ValueError); correct it"),
        ("import sys\nsys.exit(3)", "workshop.py:2: SystemExit: 3); correct it"),
    ],
)
def test_a_module_that_is_broken_itself_is_told_in_one_line_with_the_place(here, source, told):
    (here / "workshop.py").write_text(source)
    (line,) = work("workshop:app", code=2).stderr.splitlines()
    assert line.startswith("Error: workshop cannot be imported (")
    assert told in line and line.endswith("see the traceback: python -c 'import workshop'")


def test_what_twiceproof_itself_says_of_a_module_is_told_as_it_is_with_the_place(here):
    (here / "workshop.py").write_text("from twiceproof import App\napp = App('nowhere://')")
    (line,) = work("workshop:app", code=2).stderr.splitlines()
    assert "is not a store that twiceproof knows" in line and "cannot be imported" not in line
    assert line.endswith("workshop.py:2)")


FACTORY = """\
from twiceproof import App

MADE = []

def create() -> App:
    app = App("memory://")
    MADE.append(app)

    @app.flow(key="order:{order}")
    def ship(order):
        return order

    return app

def dangerous():
    raise SystemExit("it was called")
"""


def test_an_app_may_be_made_by_a_function_that_says_so(here):
    (here / "workshop.py").write_text(FACTORY)
    assert work("workshop:create", "--until-idle").exit_code == 0
    refused = work("workshop:dangerous", "--until-idle", code=2)
    assert "is a function, not an App" in refused.stderr.splitlines()[-1]


def test_a_flow_is_named_by_its_app_and_its_name(here, monkeypatch):
    (here / "workshop.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(str(here))
    found = load("workshop:create:ship")
    assert found.flow.name == "ship" and found("a") == "a"
    with pytest.raises(Misuse, match="workshop:create has no flow 'shop'; it has ship"):
        load("workshop:create:shop")
