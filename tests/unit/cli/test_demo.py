"""The demo's command: what it says, what its exit code tells, and what it leaves."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from msgspec import structs

from twiceproof.cli import demo
from twiceproof.cli.demo import DONE, FAULTS, WRONG
from twiceproof.cli.output import Progress
from twiceproof.demo.play import Approved, Count, DemoReport, DemoSettled, DemoStep, Side
from twiceproof.demo.scenario import make_plan

README = (Path(__file__).parents[3] / "README.md").read_text("utf-8")
GOOD = Side(25, 8, 0, 2, 3, 0, Count(10, 0, 0, 0, 10, 0, 0, 0))
NAIVE = structs.replace(
    GOOD, did=structs.replace(GOOD.did, invoices=14, duplicate_invoices=4, mails=12, duplicate_mails=2)
)
UNKNOWN = [DemoStep("make_invoice", "done", "INV-7"), DemoStep("send_mail", "unknown", "no answer came " * 10)]


def report_with(ours=GOOD, **others):
    words = {
        "approved": [Approved("bill_order/order:3", 3, 7_000)],
        "settled": [DemoSettled("bill_order/order:7", 7, "send_mail", "happened", UNKNOWN)],
        "unresolved": 0,
        "seconds": 11.6,
    }
    return DemoReport(make_plan(10, 1), {"naive": NAIVE, "twiceproof": ours}, **(words | others))


@pytest.fixture
def played(monkeypatch):
    """The command with an evening that is told, not played."""

    def with_report(report):
        monkeypatch.setattr(demo, "_play", lambda *_, **__: report)

    with_report(report_with())
    return with_report


def worse(**counts):
    return structs.replace(GOOD, did=structs.replace(GOOD.did, **counts))


def test_all_done_once_is_exit_code_0(run, played):
    text = run("demo").stdout
    assert "made every invoice once and sent every e-mail once" in text
    assert "4 duplicate invoices and sent 2 duplicate e-mails" in text


@pytest.mark.parametrize(
    "report",
    [
        report_with(worse(duplicate_invoices=1)),
        report_with(worse(missing_invoices=1)),
        report_with(worse(duplicate_mails=1)),
        report_with(worse(missing_mails=1)),
        report_with(worse(stale_addresses=1)),
        report_with(structs.replace(GOOD, billed_without_approval=1)),
        report_with(structs.replace(GOOD, undelivered=1)),
        report_with(unresolved=1),
    ],
)
def test_anything_wrong_is_exit_code_1(run, played, report):
    played(report)
    assert "did NOT do everything once" in run("demo", code=1).stdout
    assert json.loads(run("demo", "--json", code=1).stdout)["ok"] is False


def test_what_the_naive_script_does_wrong_is_no_fault_of_ours(run, played):
    assert json.loads(run("demo", "--json").stdout)["naive"]["duplicate_invoices"] == 4


def test_json_alone_is_on_stdout(run, played):
    found = json.loads(run("demo", "--json").stdout)
    assert (found["orders"], found["seconds"], found["ledger"]) == (10, 11.6, None)
    assert found["settled"][0]["steps"][0] == {"name": "make_invoice", "state": "done", "detail": "INV-7"}


def test_without_keep_nothing_is_left_and_it_says_so(run, played, monkeypatch, tmp_path):
    monkeypatch.setattr(demo.tempfile, "tempdir", str(tmp_path))
    before = set(tmp_path.iterdir())
    assert "--keep" in run("demo").stdout
    assert set(tmp_path.iterdir()) == before


def test_with_keep_it_says_where_and_how_to_look(run, played, monkeypatch, tmp_path):
    monkeypatch.setattr(demo.tempfile, "tempdir", str(tmp_path))
    text = run("demo", "--keep").stdout
    (place,) = tmp_path.glob("twiceproof-demo-*")
    assert f"runs show bill_order/order:7 --store sqlite:///{place}/twiceproof.db" in text


def test_a_directory_that_cannot_be_made_is_told(run, tmp_path):
    (tmp_path / "file").write_text("")
    assert "choose another --dir" in run("demo", "--dir", str(tmp_path / "file" / "below"), code=2).stderr


@pytest.mark.parametrize("name", ["twiceproof.db", "plan.json"])
def test_an_earlier_demo_is_not_written_over(run, tmp_path, name):
    (tmp_path / name).write_text("mine")
    assert "choose another --dir" in run("demo", "--dir", str(tmp_path), code=2).stderr
    assert (tmp_path / name).read_text() == "mine"


def test_fewer_orders_than_there_are_kinds_of_weather_are_refused(run):
    assert "--orders" in run("demo", "--orders", "9", code=2).stderr


def test_the_person_is_told_what_is_known_and_what_was_found_out(capsys):
    from twiceproof.cli.demo import show_approved, show_settled

    report = report_with()
    show_approved(report.approved)
    show_settled(report.settled)
    text = capsys.readouterr().out
    assert "approvals approve bill_order/order:3" in text
    assert "review settle bill_order/order:7 --happened --result null" in text
    assert re.search(r"send_mail +unknown +no answer came", text)
    assert all(len(line) < 100 for line in text.splitlines())


def test_where_there_is_no_terminal_progress_is_a_few_lines(capsys):
    with Progress("Messages", lines=True) as progress:
        for done in range(101):
            progress.show(done, 100, "(1 killed)")
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == [
        "25/100",
        "50/100",
        "75/100",
        "100/100",
    ]


@pytest.mark.parametrize("words", [{"lines": True, "quiet": True}, {}])
def test_other_commands_stay_silent_there(capsys, words):
    with Progress("Messages", **words) as progress:
        progress.show(100, 100)
    assert capsys.readouterr() == ("", "")


def test_the_readme_shows_every_row_of_the_table():
    _, _, rest = README.partition("NAIVE SCRIPT  TWICEPROOF\n")
    shown = [re.split(r"  +", line.strip())[0] for line in rest.partition("```")[0].splitlines() if line.strip()]
    rows = [words.strip() for rows in (FAULTS, DONE) for words, _ in rows]
    assert shown == ["orders", *rows, "decisions by a person", *(words for words, _ in WRONG)]
