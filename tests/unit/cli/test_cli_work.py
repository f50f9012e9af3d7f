"""`twiceproof work`: finds the user's app, says what it serves, and tells plainly what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from twiceproof.cli.main import cli
from twiceproof.cli.serve import _store
from twiceproof.settings import Settings

APP = """
from twiceproof import App
app = App("sqlite:///shop.db")
count = 7

@app.step(repeat="safe")
def ship(n):
    with open("shipped", "a") as file:
        file.write(f"{n}\\n")
    return n

@app.flow(key="order:{n}", version="2", accepts=("1",))
def order(n: int):
    if n == 13:
        raise ValueError("no\\nluck")
    return ship(n)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory of one's own; the modules in it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TWICEPROOF_STORE", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("workshop"):
            del sys.modules[name]


def work(*words, code=0):
    """In this process, for what is refused."""
    result = CliRunner().invoke(cli, ["work", *words])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def worked(*words):
    """In a process of its own, which has its own log. What it told, line by line."""
    command = [sys.executable, "-m", "twiceproof", "work", "workshop:app", "--until-idle", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return done.stderr.splitlines()


def test_it_carries_out_what_was_started_and_says_what_it_serves(here):
    (here / "workshop.py").write_text(APP + "for n in (1, 2, 13): order.start(n)\n")
    lines = worked("--concurrency", "2")
    assert "serving order@2, order@1 on sqlite:///shop.db, 2 at once" in lines[0]
    assert sum(line.endswith("order order:1: done") for line in lines) == 1
    assert sum(line.endswith("order order:13: failed with ValueError: no luck") for line in lines) == 1
    assert "stopped; 3 taken up" in lines[-1]
    assert sorted((here / "shipped").read_text().split()) == ["1", "2"]


def test_with_json_every_line_is_a_document(here):
    (here / "workshop.py").write_text(APP + "order.start(1)\n")
    lines = [json.loads(line) for line in worked("--json")]
    (done,) = [line for line in lines if line["message"] == "done"]
    assert done["run"] == done["correlation"]
    assert (done["flow"], done["key"], done["level"]) == ("order", "order:1", "info")


def test_the_handlers_of_the_users_own_stay_and_can_use_the_same_fields(here):
    own = (
        "import logging\nlogging.basicConfig(filename='own.log', format='%(correlation)s|%(message)s', level='INFO')\n"
    )
    (here / "workshop.py").write_text(own + APP + "order.start(1)\n")
    assert worked() == []
    (done,) = [line for line in (here / "own.log").read_text().splitlines() if line.endswith("|done")]
    assert done.startswith("run_")


@pytest.mark.parametrize(
    ("name", "source", "told"),
    [
        ("workshop", "", "write it as module:attr"),
        ("workshop:", "", "write it as module:attr"),
        ("workshopping:app", "", "There is no module 'workshopping'"),
        ("./workshop:app", APP, "Name the module, not its file: workshop:app"),
        ("./workshop.py:app", APP, "Name the module, not its file: workshop:app"),
        (".workshop:app", APP, "Name the module, not its file: workshop:app"),
        ("in/the/workshop:app", APP, "Name the module, not its file: in.the.workshop:app"),
        ("..:app", APP, "write it as module:attr"),
        ("workshop:ap", APP, "has no 'ap'; try workshop:app"),
        ("workshop:count", APP, "is an int, not an App; try workshop:app"),
        ("workshop:x", "x = 'y'", "there is no App in workshop"),
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
    assert told in line and line.endswith("see all of it with: python -c 'import workshop'")


def test_what_twiceproof_itself_says_of_a_module_is_told_as_it_is_with_the_place(here):
    (here / "workshop.py").write_text("from twiceproof import App\napp = App('nowhere://')")
    (line,) = work("workshop:app", code=2).stderr.splitlines()
    assert "is not a store that twiceproof knows" in line and "cannot be imported" not in line
    assert line.endswith("workshop.py:2)")


def test_an_apps_store_is_its_own_affair(here):
    result = CliRunner().invoke(cli, ["--store", "sqlite:///other.db", "work", "workshop:app"])
    assert result.exit_code == 2
    assert "TWICEPROOF_STORE" in result.stderr


def test_a_drain_without_a_unit_is_refused(here):
    (here / "workshop.py").write_text(APP)
    assert "drain" in work("workshop:app", "--drain", "5", code=2).stderr


def test_a_password_is_not_told():
    class Shop:
        settings = Settings(store="postgresql://ann:hunter22@db/shop")

    assert _store(Shop) == "postgresql://ann:***@db/shop"


def test_a_worker_for_one_flow_says_so_and_leaves_the_others(here):
    (here / "workshop.py").write_text(
        APP + "@app.flow(key='refund:{n}')\ndef refund(n: int): ...\n\norder.start(1)\nrefund.start(1)\n"
    )
    text = "\n".join(str(line) for line in worked("--flow", "order"))
    assert "serving order@2, order@1 on" in text and "refund" not in text.replace("refund@1 are carried out", "")
    assert (here / "shipped").read_text() == "1\n"
    assert (
        "No flow is called nosuch; those that are declared: order, refund"
        in work("workshop:app", "--flow", "nosuch", code=2).stderr
    )


def test_a_worker_says_where_its_metrics_are(here):
    (here / "workshop.py").write_text(APP)
    text = "\n".join(str(line) for line in worked("--metrics-port", "0"))
    assert "metrics at http://127.0.0.1:" in text
