"""`twiceproof rebuild`: from an export of the source of truth to a plan, and from the plan to the ledger."""

from __future__ import annotations

import itertools
import sys

import pytest

NAMES = itertools.count()
CODE = """
from twiceproof import App

app = App("sqlite:///{ledger}")
charged = []

@app.step(repeat="never", external="invoice:{{result[id]}}")
def invoice(order):
    charged.append(order)
    return {{"id": f"inv-{{order}}"}}

@app.flow(key="order:{{order}}")
def sync(order):
    return invoice(order)["id"]
"""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """The name of a module with a shop: imported once, it is another for each test and command."""

    def make():
        name = f"rebuilt_shop_{next(NAMES)}"
        (tmp_path / f"{name}.py").write_text(CODE.format(ledger=tmp_path / "ledger.db"))
        return name

    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield make
    sys.path[:] = before


EXPORTS = {
    "books.csv": "reference,id\n1,old-1\n2,old-2\n",
    "books.jsonl": '{"reference": 1, "id": "old-1"}\n\n{"reference": 2, "id": "old-2"}\n',
}


@pytest.mark.parametrize("name", EXPORTS)
def test_a_plan_is_made_and_applied(run, run_json, shop, tmp_path, name):
    (tmp_path / name).write_text(EXPORTS[name])
    words = ("sync", "--from", name, "--key", "order:{reference}", "--step", "invoice=id", "--result", "id")
    told = run("rebuild", "plan", f"{shop()}:app", *words, "--out", "plan.jsonl", store=None, code=1).stdout
    assert "recorded as done" in told
    assert "twiceproof rebuild apply" in told
    applied = run_json("rebuild", "apply", f"{shop()}:app", "plan.jsonl", store=None)
    assert applied == {"applied": {"adopt": 2}, "skipped": []}
    again = run("rebuild", "apply", f"{shop()}:app", "plan.jsonl", store=None).stdout
    assert "2 keys skipped" in again
    shape = run_json("rebuild", "plan", f"{shop()}:app", *words, store=None)
    assert shape["counts"] == {"unchanged": 2}
    assert "order:2" in run("ids", "show", "invoice:old-2").stdout


def test_wrong_columns_and_files_are_refused(run, shop, tmp_path):
    (tmp_path / "books.csv").write_text(EXPORTS["books.csv"])
    (tmp_path / "books.jsonl").write_text("nonsense\n")
    words = ("sync", "--from", "books.csv", "--key", "order:{reference}")
    told = run("rebuild", "plan", f"{shop()}:app", *words, "--step", "invoice=number", store=None, code=2).stderr
    assert "no column number; it has reference, id" in told
    told = run("rebuild", "plan", f"{shop()}:app", *words, "--step", "invoice", store=None, code=2).stderr
    assert "NAME=COLUMNS" in told
    words = ("sync", "--from", "books.jsonl", "--key", "order:{reference}")
    assert "no JSON object" in run("rebuild", "plan", f"{shop()}:app", *words, store=None, code=2).stderr
    assert "not a plan" in run("rebuild", "apply", f"{shop()}:app", "books.jsonl", store=None, code=2).stderr
