"""`twiceproof prove` and the fixture: what they print, what they leave behind, what they refuse."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from signal import SIGTERM
from subprocess import PIPE, Popen
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from click.testing import CliRunner, Result

from tests.unit.prove.flows import safe
from twiceproof.cli.main import cli
from twiceproof.cli.prove import WorldOptions
from twiceproof.prove.report import ProofReport

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[3] / "docs/how-to/prove-a-flow.md").read_text()
CODE = PAGE.partition("```python\n")[2].partition("```")[0]

LINGERING = "    send_mail(order)\n    print('lingering', flush=True)\n    __import__('time').sleep(30)\n"

Shop = Callable[[str], "Result"]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "shop", raising=False)
    (tmp_path / "shop.py").write_text(CODE)
    (tmp_path / "out").mkdir()
    (tmp_path / "order.json").write_text('{"id": 17, "name": "Ada"}')
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["prove", "shop:welcome", "--event", "order.json", *words])


@pytest.mark.slow
def test_the_how_to_shows_what_the_command_prints(shop: Path) -> None:
    said = PAGE.partition("--files out --depth 1\n")[2].partition("```")[0]
    done = run("--files", "out", "--depth", "1")
    assert done.output == said
    assert done.exit_code == 1
    assert list((shop / "out").iterdir()) == []


def test_an_event_that_names_a_field_twice_is_refused(shop: Path) -> None:
    (shop / "order.json").write_text('{"id": 1, "id": 2}')
    told = run()
    assert told.exit_code == 2 and "has the name 'id' twice" in told.output


def test_one_scenario_can_be_played_alone_and_told_in_json_and_junit(shop: Path) -> None:
    done = run("--files", "out", "--scenario", "lost-2", "--json", "--junit", "verdicts.xml")
    told = msgspec.json.decode(done.output)
    assert (done.exit_code, told["safe"], told["planned"]) == (1, False, 1)
    assert told["verdicts"][0]["extra"] == {"mails.txt: Dear Ada": 1}
    suite = ElementTree.parse(shop / "verdicts.xml").getroot()
    assert (suite.get("failures"), suite[0].get("name"), suite[0][0].get("type")) == ("1", "lost-2", "twice")


def test_a_wrong_declaration_that_is_put_right_is_safe(shop: Path) -> None:
    (shop / "shop.py").write_text(CODE.replace('"safe")  # it is not: a line is added each time', '"never")'))
    done = run("--files", "out", "--scenario", "lost-2")
    assert done.exit_code == 0 and "1 parked" in done.output


def test_calls_of_a_function_can_be_the_effect(shop: Path) -> None:
    (shop / "mailer.py").write_text("def send(name): ...\n")
    calling = CODE.replace("from pathlib", "import mailer\nfrom pathlib").replace(
        "with (OUT", 'mailer.send("Ada")\n    with (OUT'
    )
    (shop / "shop.py").write_text(calling)
    done = run("--calls", "mailer:send", "--scenario", "lost-2")
    assert "mailer:send('Ada') (1 more)" in done.output
    assert "Not observed: save_order" in done.output


def test_a_budget_that_ends_early_is_told(shop: Path) -> None:
    done = run("--files", "out", "--time-limit", "1ms", "--json")
    told = msgspec.json.decode(done.output)
    assert told["complete"] is False and told["safe"] is False and told["planned"] > 15


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "No effect is observed"),
        (("--files", "nowhere"), "is not a directory"),
        (("--calls", "nobody:knows"), "module:function"),
        (("--files", "out", "--scenario", "nonsense"), "there are: twice, at-once"),
        (("--files", "out", "--scenario", "nonsense"), " of two with a + between, which --all lists"),
        (("--http", "http://pay.test"), "without http://"),
        (("--calls", "os.path:exists", "--files", "out", "--processes", "--store", "memory://"), "share no memory"),
        (("--table", "shop.db"), "at the end of its database's URL"),
        (("--files", "out", "--callback", "paid"), "--callback paid=payment.json"),
        (("--http", "pay.test", "--http-answers", "none.json"), "--http-answers takes a JSON file"),
        (("--files", "out", "--store", "sqlite:///mine.db"), "leave --store out"),
        (("--files", "out", "--junit", "nowhere/verdicts.xml"), "--junit takes a file's name"),
        (("--files", "out", "--approve", "charge"), "waited for nothing, and never for charge"),
    ],
)
def test_what_cannot_be_played_is_refused_with_a_next_move(shop: Path, words: tuple[str, ...], says: str) -> None:
    done = run(*words)
    assert done.exit_code == 2 and says in done.output


def test_every_scenario_can_be_listed_with_what_was_expected_and_seen(shop: Path) -> None:
    done = run("--files", "out", "--scenario", "lost-2", "--all")
    assert done.output.splitlines()[4].split()[2:4] == ["EXPECTED", "ACTUAL"]
    assert "lost-2    send_mail is done, and its answer is lost  2         3       done   twice" in done.output


@pytest.mark.slow
def test_whoever_ends_it_the_outside_is_put_back_and_its_answer_is_its_own(shop: Path) -> None:
    (shop / "out" / "kept.txt").write_text("kept")
    (shop / "shop.py").write_text("print('imported')\n" + CODE.replace("    send_mail(order)\n", LINGERING))
    words = ["prove", "shop:welcome", "--event", "order.json", "--files", "out", "--scenario", "twice", "--json"]
    with Popen([sys.executable, "-m", "twiceproof", *words], stdout=PIPE, stderr=PIPE, text=True) as proof:
        assert proof.stderr is not None
        assert any("lingering" in line for line in proof.stderr)
        proof.terminate()
        out, _ = proof.communicate(timeout=20)
    assert (proof.returncode, out) == (128 + SIGTERM, "")
    assert [path.name for path in (shop / "out").iterdir()] == ["kept.txt"]


FALLING_BACK = """    try:
        send_mail(order)
    except Exception:
        (OUT / "fallback.txt").write_text("sorry")
"""


@pytest.mark.parametrize(("scenario", "word"), [("kill-effect-2-before", "parked"), ("kill-effect-2-after", "parked")])
def test_what_a_killed_process_would_have_caught_is_not_held_against_the_flow(
    shop: Path, scenario: str, word: str
) -> None:
    careful = CODE.replace('"safe")  # it is not: a line is added each time', '"never")')
    (shop / "shop.py").write_text(careful.replace("    send_mail(order)\n", FALLING_BACK))
    done = run("--files", "out", "--scenario", scenario, "--json")
    assert [verdict["word"] for verdict in msgspec.json.decode(done.output)["verdicts"]] == [word]


def test_what_is_not_a_flow_is_refused(shop: Path) -> None:
    done = CliRunner().invoke(cli, ["prove", "shop:OUT", "--event", "order.json", "--files", "out"])
    assert done.exit_code == 2 and "under @app.flow" in done.output


def test_a_flow_that_is_not_there_leads_to_those_that_are(shop: Path) -> None:
    done = CliRunner().invoke(cli, ["prove", "shop:welcom", "--event", "order.json", "--files", "out"])
    assert done.exit_code == 2 and "has no 'welcom'; try shop:welcome." in done.output


def test_a_key_that_is_another_one_each_time_is_told_before_anything_is_played(shop: Path) -> None:
    changing = 'key=lambda order: f\'{order["id"]}:{__import__("time").time_ns()}\''
    (shop / "shop.py").write_text(CODE.replace('key="order:{order[id]}"', changing))
    done = run("--files", "out")
    assert done.exit_code == 2 and "The key is another one each time" in done.output


@pytest.mark.parametrize(
    ("made", "clock"),
    [
        ("f\"{order['id']}:{date.today()}\"", "datetime.date.today"),
        ("f\"{order['id']}:{day()}\"", "datetime.date.today"),
        ("f\"{order['id']}:{order.get('day', 1)}\"", ""),
    ],
    ids=["the clock", "a helper that reads it", "the event's own day"],
)
def test_a_key_that_is_cut_by_the_clock_is_said_to_hold_only_so_long(shop: Path, made: str, clock: str) -> None:
    helper = "from datetime import date\n\n\ndef day():\n    return date.today()\n"
    (shop / "shop.py").write_text(helper + CODE.replace('key="order:{order[id]}"', f"key=lambda order: {made}"))
    done = run("--files", "out", "--depth", "1")
    assert (f"The key is made with {clock}()" in done.output) is bool(clock)
    assert ("Not tested: a delivery at another time" in done.output) is bool(clock)
    report = msgspec.json.decode(run("--files", "out", "--scenario", "twice", "--json").stdout)
    assert report["clocks"] == ([clock] if clock else [])


@pytest.mark.parametrize("text", ["[]", "[1]", '"POST /charges"'])
def test_answers_that_are_no_object_are_refused_with_a_next_move(shop: Path, text: str) -> None:
    (shop / "answers.json").write_text(text)
    done = run("--http", "pay.test", "--http-answers", "answers.json")
    assert done.exit_code == 2 and '{"POST /charges": {"status": 201' in done.output


def test_the_fixture_returns_the_report_of_a_safe_flow(prove: Callable[..., ProofReport]) -> None:
    report = prove(safe.effect_in_the_body, {"id": 7}, world=lambda: list(safe.outside), depth=1)
    assert report.good and report.expected == {"mail 7": 1} and report.unobserved == ()
    assert safe.outside == []


# -- what stands in for the outside --------------------------------------------------------------

OVER_THE_WIRE = """
import json, smtplib, sqlite3, urllib.request
from twiceproof import App

app = App("memory://")


@app.step(repeat="keyed")
def charge(order):
    headers = {"Idempotency-Key": app.effect_key(), "Content-Type": "application/json"}
    request = urllib.request.Request("http://pay.test/charges", json.dumps(order).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["id"]


@app.step(repeat="never")
def mail(order):
    with smtplib.SMTP("mail.test") as client:
        client.sendmail("shop@test", ["ada@test"], "Subject: hello\\n\\nDear Ada")


@app.step(repeat="safe")
def keep(order):
    with sqlite3.connect("shop.db") as db:
        db.execute("INSERT INTO orders VALUES (?, ?) ON CONFLICT DO NOTHING", (order["id"], order["name"]))
    db.close()


@app.flow(key="order:{order[id]}")
def welcome(order):
    payment = app.wait_for("paid")
    app.approve("charge", show=order)
    charge(order | payment)
    mail(order)
    keep(order)
"""
WORDS = (
    "--http",
    "pay.test",
    "--smtp",
    "mail.test",
    "--table",
    "sqlite:///shop.db#orders",
    "--callback",
    "paid=paid.json",
    "--approve",
    "charge",
)


@pytest.fixture
def wired(shop: Path) -> Path:
    import sqlite3

    (shop / "shop.py").write_text(OVER_THE_WIRE)
    (shop / "paid.json").write_text('{"amount": 5}')
    (shop / "answers.json").write_text('{"POST /charges": {"status": 201, "body": {"id": "ch_1"}}}')
    with sqlite3.connect(shop / "shop.db") as db:
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT)")
    db.close()
    return shop


@pytest.mark.parametrize("real", [(), ("--processes",)], ids=["simulated", "real"])
def test_everything_that_a_flow_reaches_can_be_looked_at_together(wired: Path, real: tuple[str, ...]) -> None:
    done = run(*WORDS, "--http-answers", "answers.json", "--http-keys", "--scenario", "lost-1", "--json", *real)
    told = msgspec.json.decode(done.output)
    assert (done.exit_code, told["safe"], told["verdicts"][0]["word"]) == (0, True, "same")
    charged, mailed, kept = sorted(told["expected"])
    assert charged.startswith("POST pay.test/charges #") and mailed == "mail to ada@test: hello"
    assert kept == "orders: 17 | Ada" and told["unobserved"] == []


def test_without_keys_the_same_flow_is_not_safe_and_its_command_can_be_given_again(wired: Path) -> None:
    done = run(*WORDS, "--http-answers", "answers.json", "--scenario", "answer-lost-1")
    assert done.exit_code == 1
    again = next(line for line in done.output.splitlines() if line.startswith("To run it again: twiceproof "))
    words = shlex.split(again.removeprefix("To run it again: twiceproof "))
    repeated = CliRunner().invoke(cli, words)
    assert (repeated.exit_code, repeated.output) == (1, done.output)
    assert 'charge is declared "keyed", and the destination did not know' in done.output


def test_events_of_one_object_are_played_in_every_order(shop: Path) -> None:
    (shop / "second.json").write_text('{"id": 17, "name": "Bob"}')
    (shop / "shop.py").write_text(CODE.replace("order:{order[id]}", "order:{order[name]}"))
    done = run("--event", "second.json", "--files", "out", "--scenario", "order-2-1")
    assert done.exit_code == 1 and "the events come in the order 2, 1" in done.output


def test_a_password_in_a_table_is_not_shown_again() -> None:
    shown = WorldOptions(table=("postgresql://me:secret@db/shop#orders", "sqlite:///shop.db#orders")).words()
    assert shown == ["--table", "@FILE", "--table", "sqlite:///shop.db#orders"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["greeting", "payment", "parcel"])
def test_the_tests_of_the_how_to_pass(
    prove: Callable[..., ProofReport], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = [part.partition("```")[0] for part in PAGE.split("```python\n")[1:]]
    names: dict[str, Any] = {"__name__": "how_to"}
    for block in blocks:
        exec(compile(block, "prove-a-flow.md", "exec"), names)
    names[f"test_a_{name}_is_safe_to_repeat"](partial(prove, depth=1))


MESSAGES = """
import uuid
from twiceproof import App
from twiceproof.brokers.base import OutgoingMessage
from twiceproof.brokers.open import open_broker

app = App("memory://")
app.broker("main", "amqp://shop.test")
app.route("orders.*", to="main", place="orders")
broker = open_broker("amqp://shop.test")  # as a module does it, before anything is played

@app.step(repeat="safe")
def announce(order):
    broker.publish([OutgoingMessage("orders", str(uuid.uuid4()), b"paid")], 10.0)

@app.flow(key="order:{order[id]}")
def by_hand(order):
    announce(order)

@app.flow(key="order:{order[id]}")
def sent(order):
    app.send("orders.paid", "paid")
"""


@pytest.mark.parametrize("words", [(), ("--processes",)])
def test_a_flow_that_publishes_by_hand_is_not_safe_and_its_twin_is(shop: Path, words: tuple[str, ...]) -> None:
    (shop / "shop.py").write_text(MESSAGES)
    told = {
        flow: CliRunner().invoke(
            cli, ["prove", f"shop:{flow}", "--event", "order.json", "--broker", "--depth", "1", *words]
        )
        for flow in ("by_hand", "sent")
    }
    assert (told["by_hand"].exit_code, told["sent"].exit_code) == (1, 0), told["sent"].output
    assert "Write instead: app.send(topic, body)" in told["by_hand"].output
    assert "--event order.json --broker " in told["by_hand"].output  # in what to run again
    assert "delivered three times, its acknowledgements lost" in told["sent"].output


def test_a_broker_without_a_stand_in_is_refused_with_what_to_write(shop: Path) -> None:
    (shop / "shop.py").write_text(MESSAGES.replace("amqp://shop.test", "amqp://127.0.0.1:5672"))
    done = CliRunner().invoke(cli, ["prove", "shop:by_hand", "--event", "order.json", "--calls", "shop:announce"])
    assert done.exit_code == 2
    assert "127.0.0.1:5672" in done.output and "--broker" in done.output and "app.send(topic, body)" in done.output
