"""`twiceproof flows` and `twiceproof ids`."""

from __future__ import annotations

import json

import pytest


@pytest.fixture(autouse=True)
def filled(shop):
    shop.fill()


def test_runs_under_way_are_counted_by_version(run_json):
    (count,) = run_json("flows", "list")["flows"]
    assert count == {
        "flow": "buy",
        "version": "1",
        "held": 0,
        "queued": 1,
        "waiting": 1,
        "review": 1,
        "open": 3,
        "supported": None,
    }


APP = """
from twiceproof import App
app = App("{url}")

@app.flow(key="o:{{n}}", name="buy", version="2", accepts={accepts})
def buy(n: int) -> int:
    return n
"""


def write_app(ledger, name, accepts):
    """Each under its own name: a module is imported once, and the command closes its app."""
    (ledger.path.parent / f"{name}.py").write_text(APP.format(url=ledger.url, accepts=accepts))
    return f"{name}:app"


@pytest.mark.parametrize(("accepts", "code"), [('("1",)', 0), ("()", 1)])
def test_an_app_says_which_versions_it_carries_out(run, ledger, accepts, code):
    shown = run("flows", "list", write_app(ledger, f"json_{code}", accepts), "--json", store=None, code=code).stdout
    found = {(count["version"], count["supported"]) for count in json.loads(shown)["flows"]}
    assert found == {("1", code == 0), ("2", True)}
    text = run("flows", "list", write_app(ledger, f"text_{code}", accepts), store=None, code=code).stdout
    assert ("does not support buy@1" in text) == bool(code)


def test_an_outside_id_leads_to_its_run_and_back(run, run_json):
    (link,) = run_json("ids", "show", "bank:ch_done")["ids"]
    assert set(link) == {"external", "flow", "key", "run", "step", "state"}
    assert (link["flow"], link["key"], link["step"]) == ("buy", "order:done", "charge")
    for name in (link["run"], "buy/order:done", "order:done"):
        assert run_json("ids", "show", name)["ids"] == [link]
    assert "order:done" in run("ids", "show", "bank:ch_done").stdout


@pytest.mark.parametrize("name", ["bank:nothing", "run_abc123", "buy/nothing", "no flow/x"])
def test_an_id_that_nobody_knows_is_a_negative_answer(run, name):
    assert "external=" in run("ids", "show", name, code=1).stderr


@pytest.mark.parametrize("external", ["run_abc123", "buy/55", "no flow/x"])
def test_an_id_of_the_outside_may_look_like_a_run(run_json, shop, external):
    @shop.app.step(repeat="safe", external="{external}")
    def make(external: str) -> None: ...

    @shop.app.flow(key="made:{external}")
    def making(external: str) -> None:
        make(external)

    making(external)
    (link,) = run_json("ids", "show", external)["ids"]
    assert (link["flow"], link["external"]) == ("making", external)
