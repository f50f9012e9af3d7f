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
    assert "twiceproof rebuild apply rebuilt_shop_" in told and ":app plan.jsonl" in told
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
    (tmp_path / "books.csv").write_text("reference,id\n1,old-1\n2")
    words = ("sync", "--from", "books.csv", "--key", "order:{reference}", "--out", "half.jsonl")
    assert "it was cut off" in run("rebuild", "plan", f"{shop()}:app", *words, store=None, code=2).stderr
    assert not (tmp_path / "half.jsonl").exists()
    assert "not a plan" in run("rebuild", "apply", f"{shop()}:app", "books.jsonl", store=None, code=2).stderr


def test_what_the_source_lacks_is_settled_only_within_the_count_that_is_given(run, run_json, shop, tmp_path):
    (tmp_path / "books.csv").write_text(EXPORTS["books.csv"])
    words = ("sync", "--from", "books.csv", "--key", "order:{reference}", "--step", "invoice=id", "--out", "plan.jsonl")
    run("rebuild", "plan", f"{shop()}:app", *words, "--as-of", "2026-03-02T12:00:00Z", store=None, code=1)
    told = run_json("rebuild", "apply", f"{shop()}:app", "plan.jsonl", "--settle-absent", "3", store=None)
    assert told == {"applied": {"adopt": 2}, "skipped": []}
    run("rebuild", "apply", f"{shop()}:app", "plan.jsonl", "--settle-absent", "0", store=None, code=2)
    for wrong in ("2026-03-02T12:00:00", "yesterday", "2999-01-01T00:00:00Z"):
        run("rebuild", "plan", f"{shop()}:app", *words, "--as-of", wrong, store=None, code=2)


def test_a_plan_is_compared_with_a_fresh_one(run, run_json, shop, tmp_path):
    for name, export in (("plan.jsonl", EXPORTS["books.csv"]), ("fresh.jsonl", "reference,id\n1,old-1\n2,new-2\n")):
        (tmp_path / "books.csv").write_text(export)
        words = ("sync", "--from", "books.csv", "--key", "order:{reference}", "--step", "invoice=id", "--out", name)
        run("rebuild", "plan", f"{shop()}:app", *words, store=None, code=1)
    applying = ("plan.jsonl", "--fresh", "fresh.jsonl")
    told = run("rebuild", "apply", f"{shop()}:app", *applying, store=None, code=2).stderr
    assert "for 1 of its keys, such as order:2" in told
    applied = run_json("rebuild", "apply", f"{shop()}:app", *applying, "--changed", "1", store=None)
    assert applied == {"applied": {"adopt": 1}, "skipped": ["order:2"]}
