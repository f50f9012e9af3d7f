"""`twiceproof reconcile`: exit codes, stable JSON, and what a person does with a finding."""

from __future__ import annotations

import itertools
import sys

import pytest

from twiceproof.cli.load import load_app

APP = """
import json
from pathlib import Path
from twiceproof import App
from twiceproof.reconcile import Cap, compensate

app = App("{url}")
books = Path("books.json")

def void(result):
    books.write_text(json.dumps([row for row in json.loads(books.read_text()) if row["id"] != result["id"]]))

@app.step(repeat="safe", undo=void)
def create_invoice(order: int) -> dict:
    return {{"id": f"in_{{order}}"}}

@app.flow(key="order:{{order}}", stable=("order",))
def sync_order(order: int) -> dict:
    return create_invoice(order)

@app.reconcile(every="1d", at="03:00", grace="{grace}")
def invoices(find):
    rows = find.source("books", lambda: json.loads(books.read_text()), key="order:{{order}}", id="{{id}}")
    yield find.duplicates(rows, then=compensate(create_invoice, cap=Cap(0)))
"""
REPORT = {
    "reconciliation",
    "tick",
    "complete",
    "sources",
    "checks",
    "findings",
    "ids",
    "new",
    "reopened",
    "resolved",
    "plans",
    "outcomes",
    "dry",
}
numbers = itertools.count()


@pytest.fixture
def books(tmp_path):
    import json

    def write(*rows):
        (tmp_path / "books.json").write_text(json.dumps([{"id": id_, "order": order} for id_, order in rows]))

    write(("in_1", 1), ("in_2", 2))
    return write


@pytest.fixture
def module(ledger, tmp_path):
    """A module with the app; a new one each time, because a module is imported once."""

    def make(grace="0s"):
        name = f"reconciled{next(numbers)}"
        (tmp_path / f"{name}.py").write_text(APP.format(url=ledger.url, grace=grace))
        return f"{name}:app"

    return make


def test_each_end_of_a_run_has_its_exit_code(run, books, module):
    def reconcile(*words, code):
        return run("reconcile", "run", module(), *words, store=None, code=code)

    assert "Nothing was found." in reconcile("invoices", code=0).stdout
    books(("in_1", 1), ("in_2", 2), ("other", 2))
    assert "2 in books, where 1 should be" in reconcile("invoices", "--dry-run", code=3).stdout
    reconcile("invoices", code=3)
    books()
    assert "books: 0 rows, incomplete: it has no rows" in reconcile("invoices", code=4).stdout
    assert "those that are declared: invoices" in reconcile("none", code=1).stderr


def test_the_json_shape_is_exact(run_json, books, module):
    books(("in_1", 1), ("in_2", 2), ("other", 2))
    told = run_json("reconcile", "run", module(), "invoices", "--dry-run", store=None, code=3)
    assert set(told) == REPORT
    assert told["dry"] and told["complete"] and told["new"] == 0
    (found,) = told["findings"]
    assert set(found) == {"check", "key", "refs", "summary", "records"}
    assert (found["check"], found["key"], found["refs"]) == ("duplicates:books", "order:2", ["in_2", "other"])
    (source,) = told["sources"]
    assert source == {"source": "books", "rows": 3, "whole": True, "why": "", "unusable": 0, "examples": []}
    (check,) = told["checks"]
    assert check == {"check": "duplicates:books", "suspects": 1, "findings": 1, "unsure": 0, "skipped": ""}


def test_a_plan_over_its_cap_names_the_command_for_the_ledger_of_the_app(run, books, module):
    name = module()
    with load_app(name):
        sys.modules[name.partition(":")[0]].sync_order(2)
    books(("in_1", 1), ("in_2", 2), ("other", 2))
    told = run("reconcile", "run", module(), "invoices", store=None, code=3).stdout
    assert "1 action about duplicates:books: needs an approval (1 action, more than 0)" in told
    command = told.rpartition("To decide: twiceproof ")[2].split()
    assert command[0] == "--store" and "invoices.plan" in run(*command, store=None).stdout


def test_a_dry_run_records_nothing(run, run_json, books, module):
    books(("in_1", 1), ("in_2", 2), ("other", 2))
    run("reconcile", "run", module(), "invoices", "--dry-run", store=None, code=3)
    assert run_json("reconcile", "findings", "list") == {"findings": []}


def test_a_run_waits_for_its_second_look(run, books, module):
    books(("in_1", 1), ("in_2", 2), ("other", 2))
    told = run("reconcile", "run", module(grace="1h"), "invoices", "--grace", "100ms", store=None, code=3)
    assert "other" in told.stdout or "order:2" in told.stdout


def test_reconciliations_are_listed_with_their_last_runs(run, run_json, books, module):
    assert "1d at 03:00" in run("reconcile", "list", module(), store=None).stdout
    books(("in_1", 1), ("in_2", 2), ("other", 2))
    run("reconcile", "run", module(), "invoices", store=None, code=3)
    (row,) = run_json("reconcile", "list", module(), store=None)["reconciliations"]
    assert set(row) == {"name", "every", "last_run_at", "last_whole_run_at", "rows", "open"}
    assert (row["name"], row["rows"], row["open"]) == ("invoices", {"books": 3}, 1)


def test_a_person_sees_to_a_finding(run, run_json, books, module):
    books(("in_1", 1), ("in_2", 2), ("other", 2))
    run("reconcile", "run", module(), "invoices", store=None, code=3)
    (found,) = run_json("reconcile", "findings", "list")["findings"]
    assert found["state"] == "open" and [move.split()[3] for move in found["next"]] == ["ack", "suppress", "resolve"]
    id_ = found["id"]
    text = run("reconcile", "findings", "show", id_).stdout
    assert "order:2" in text and f"reconcile findings ack {id_}" in text
    assert "is acknowledged" in run("reconcile", "findings", "ack", id_, "--by", "ann", "--note", "asked").stdout
    shown = run_json("reconcile", "findings", "suppress", id_, "--by", "ben", "--until", "30d")["finding"]
    assert (shown["state"], shown["by"]) == ("suppressed", "ben") and shown["until"] > found["opened_at"]
    assert run_json("reconcile", "findings", "resolve", id_, "--by", "ann")["finding"]["state"] == "resolved"
    assert run_json("reconcile", "findings", "list") == {"findings": []}
    assert len(run_json("reconcile", "findings", "list", "--state", "all", "--name", "invoices")["findings"]) == 1
    assert "No findings." in run("reconcile", "findings", "list", "--tenant", "acme").stdout
    assert "findings list" in run("reconcile", "findings", "show", "fnd_none", code=1).stderr
