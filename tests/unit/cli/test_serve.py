"""`twiceproof work` and `twiceproof serve`: what they log, and what they refuse."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner

from twiceproof.cli.main import cli
from twiceproof.cli.serve import _store
from twiceproof.settings import Settings

from .workshop import APP, work, worked


def test_it_carries_out_what_was_started_and_says_what_it_serves(here):
    (here / "workshop.py").write_text(APP + "for n in (1, 2, 13): order.start(n)\n")
    lines = worked("--concurrency", "2")
    assert "running order@2, order@1 on sqlite:///shop.db, 2 at once" in lines[0]
    assert sum(line.endswith("order order:1: done") for line in lines) == 1
    assert sum(line.endswith("order order:13: failed with ValueError: no luck") for line in lines) == 1
    assert "stopped after 3 runs" in lines[-1]
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
    assert "running order@2, order@1 on" in text and "refund" not in text.replace("refund@1 are carried out", "")
    assert (here / "shipped").read_text() == "1\n"
    assert (
        "No flow is called nosuch; those that are declared: order, refund"
        in work("workshop:app", "--flow", "nosuch", code=2).stderr
    )


@pytest.mark.parametrize("flow", [("--flow", "order"), ()], ids=["one flow", "all"])
def test_a_worker_for_one_flow_says_that_messages_are_left_to_others(here, flow):
    route = "app.broker('main', 'memory://')\napp.route('orders.*', to='main')\n"
    (here / "workshop.py").write_text(APP + route)
    text = "\n".join(worked(*flow))
    assert ("with --flow no messages are published" in text) == bool(flow)


def test_a_worker_says_where_its_metrics_are(here):
    (here / "workshop.py").write_text(APP)
    text = "\n".join(str(line) for line in worked("--metrics-port", "0"))
    assert "metrics at http://127.0.0.1:" in text


@pytest.mark.parametrize(
    "words",
    [
        ("work", "x:app", "--store", "s"),
        ("--store", "sqlite:///s", "work", "x:app"),
        ("work", "x:app", "--tenant", "t"),
    ],
)
def test_a_worker_is_told_no_store_wherever_it_stands_on_the_line(words):
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 2
    assert "The app names its own store and tenant" in result.stderr


def test_a_server_without_its_extra_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    done = CliRunner().invoke(cli, ["serve", "shop:app"])
    assert done.exit_code == 2
    assert "pip install 'twiceproof[server]'" in done.stderr
