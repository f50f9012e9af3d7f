"""Flows made of effects, proved: every effect acts as a step does, named or not, and is judged by its own kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from twiceproof import App, Misuse
from twiceproof.cli.main import cli
from twiceproof.cli.prove import WorldOptions
from twiceproof.effects import http, mail
from twiceproof.effects.repeat import keyed
from twiceproof.prove.diagnosis import declarations, refuse_elsewhere
from twiceproof.prove.fixture import NotSafe, prove
from twiceproof.prove.prover import Prover
from twiceproof.prove.report import ProofReport, unanswered_lines
from twiceproof.prove.scenarios.scenario import ScenarioOutcome, TimelineEvent
from twiceproof.prove.target import target_of
from twiceproof.prove.worlds.http import HttpWorld
from twiceproof.prove.worlds.personalities import ProviderWorld
from twiceproof.prove.worlds.smtp import SmtpWorld

pytestmark = pytest.mark.slow

ORDER = {"id": 17, "total": 500}
CHARGES = "https://api.stripe.com/v1/charges"
FIND = http.find("GET /invoices?reference={key}", at="items[0]", absent=404)


@pytest.fixture
def app() -> Iterator[App]:
    with App("memory://") as app:
        yield app


def proved(flow: Any, world: Any) -> ProofReport:
    return prove(flow, ORDER, world=world, store="memory", depth=1)


def scenarios_of(report: ProofReport, sign: str) -> list[str]:
    return [one.scenario for one in report.verdicts if one.scenario.startswith(sign)]


@pytest.mark.parametrize("named", [True, False])
def test_an_effect_is_killed_paused_and_left_without_an_answer(app: App, named: bool) -> None:
    @app.effect
    def charge(order: dict[str, int]) -> http.HttpEffect:
        return http.post(CHARGES, form={"amount": order["total"]}, provider="stripe")

    @app.flow(key="order:{order[id]}")
    def pay(order: dict[str, int]) -> str:
        if named:
            return str(charge(order)["id"])
        made = app.effects.http.post(CHARGES, form={"amount": order["total"]}, provider="stripe")
        return str(made["id"])

    with ProviderWorld("stripe") as world:
        report = proved(pay, world)
    assert scenarios_of(report, "kill-effect") == ["kill-effect-1-before", "kill-effect-1-after"]
    assert (scenarios_of(report, "lost-"), scenarios_of(report, "paused-"), scenarios_of(report, "answer-lost")) == (
        ["lost-1"],
        ["paused-1"],
        ["answer-lost-1"],
    )
    assert report.unobserved == ()


def test_an_unnamed_effect_of_an_async_flow_is_played_as_well(app: App, tmp_path: Path) -> None:
    lines = tmp_path / "orders.jsonl"

    @app.flow(key="order:{order[id]}")
    async def log(order: dict[str, int]) -> None:
        await app.effects.files.append(lines, {"order": order["id"]})

    def wipe() -> None:
        lines.unlink(missing_ok=True)

    def seen() -> int:
        return len(lines.read_text().splitlines()) if lines.exists() else 0

    report = prove(log, ORDER, world=seen, reset=wipe, store="memory", depth=1)
    assert scenarios_of(report, "lost-") == ["lost-1"]


@pytest.mark.parametrize(
    ("effect", "found", "move"),
    [
        (lambda: http.post(CHARGES, provider="stripe"), 'declared "keyed"', "--provider stripe"),
        (lambda: http.post("https://api.shop.test/", provider="stripe"), 'declared "keyed"', "--http-keys"),
        (lambda: http.post(CHARGES, repeat="safe"), 'declared "safe"', 'http.post(url, …, provider="stripe")'),
        (lambda: http.post("https://api.shop.test/", repeat="safe"), 'declared "safe"', "look=http.find(…)"),
        (lambda: http.post("https://api.shop.test/", look=FIND), "says Absent", "looks for what the step itself left"),
    ],
)
def test_a_wrong_effect_is_told_by_its_own_kind(app: App, effect: Any, found: str, move: str) -> None:
    @app.effect
    def act(order: dict[str, int]) -> http.HttpEffect:
        return effect()

    @app.flow(key="order:{order[id]}")
    def acting(order: dict[str, int]) -> None:
        assert app.flows  # by this name prove finds the app
        act(order)

    with HttpWorld(["api.stripe.com", "api.shop.test"]) as world, pytest.raises(NotSafe) as refused:
        proved(acting, world)
    (wrong,) = refused.value.report.wrong
    assert found in wrong.found and move in wrong.instead


SEARCH = http.find("GET /search?reference={effect_key}", at="items[0]")


def paying(app: App, **options: Any) -> Any:
    @app.effect
    def charge(order: dict[str, int]) -> http.HttpEffect:
        return http.post(CHARGES, form={"amount": order["total"]}, **options)

    @app.flow(key="order:{order[id]}")
    def pay(order: dict[str, int]) -> str:
        assert app.flows  # by this name prove finds the app
        return str(charge(order)["id"])

    return pay


@pytest.mark.parametrize("processes", [False, True], ids=["simulated", "real processes"])
@pytest.mark.parametrize(("looks", "word"), [(True, "same"), (False, "parked")], ids=["with a look", "without"])
def test_a_provider_repeats_its_errors_and_forgets_its_keys(app: App, looks: bool, word: str, processes: bool) -> None:
    flow = paying(app, provider="stripe", **({"look": SEARCH} if looks else {}))
    store = "sqlite" if processes else "memory"
    for scenario in ("error-again-1", "forgotten-1"):
        with ProviderWorld("stripe") as world:
            target = target_of(flow, ORDER)
            report = Prover(target, world, store=store, only=scenario, depth=1, processes=processes).run()
        assert [(one.scenario, one.word) for one in report.verdicts] == [(scenario, word)]


def test_a_window_that_is_longer_than_the_providers_is_found(app: App) -> None:
    flow = paying(app, provider="stripe", repeat=keyed(window="60d"))
    with ProviderWorld("stripe") as world, pytest.raises(NotSafe) as refused:
        proved(flow, world)
    assert [one.scenario for one in refused.value.report.bad] == ["forgotten-1"]
    (wrong,) = refused.value.report.wrong
    assert wrong.found == 'is declared "keyed" for longer than its provider remembers keys'
    assert 'repeat=provider("stripe")' in wrong.instead


def test_an_upsert_by_external_id_happens_once_however_often_it_is_sent(app: App) -> None:
    @app.effect
    def save(order: dict[str, int]) -> http.HttpEffect:
        url = f"https://shop.my.salesforce.com/services/data/v60.0/sobjects/Order__c/Ext__c/{order['id']}"
        return http.patch(url, json={"total": order["total"]}, provider="salesforce")

    @app.flow(key="order:{order[id]}")
    def sync(order: dict[str, int]) -> None:
        assert app.flows  # by this name prove finds the app
        save(order)

    with ProviderWorld("salesforce", hosts=["shop.my.salesforce.com"]) as world:
        assert proved(sync, world).good


def test_a_world_without_keys_has_no_such_scenarios(app: App) -> None:
    with HttpWorld(["api.stripe.com"], honours_keys=True) as world:
        report = proved(paying(app, provider="stripe"), world)
    assert scenarios_of(report, "error-again") == scenarios_of(report, "forgotten") == []


def test_a_read_that_the_stand_in_could_not_answer_is_told_and_can_be_answered(app: App) -> None:
    @app.effect
    def invoice(order: dict[str, int]) -> http.HttpEffect:
        return http.post("https://books.test/invoices", json={"reference": http.KEY}, look=FIND)

    @app.flow(key="order:{order[id]}")
    def sync(order: dict[str, int]) -> str:
        assert app.flows  # by this name prove finds the app
        return str(invoice(order)["id"])

    answers: dict[str, Any] = {"POST /invoices": {"body": {"id": "inv-1"}}}
    with (
        HttpWorld(["books.test"], answers=answers) as world,
        pytest.raises(NotSafe, match="Not answered: GET books") as told,
    ):
        proved(sync, world)
    assert "First answer what it asks the stand-in" in str(told.value)  # before its probe is called wrong
    answers["GET /invoices*"] = {"body": {"items": [{"id": "inv-1"}]}, "after": "POST /invoices"}
    with HttpWorld(["books.test"], answers=answers) as world:
        report = proved(sync, world)
    assert list(unanswered_lines(report)) == []


def test_a_naive_mail_is_told_what_to_write(app: App) -> None:
    @app.effect
    def greet(order: dict[str, int]) -> mail.MailSending:
        message = mail.message(sender="shop@shop.test", to="ada@example.org", subject="Hello", text="Ada")
        return mail.send(message, via=mail.smtp("mail.shop.test"))

    @app.step(repeat="safe")
    def greet_again_and_again(order: dict[str, int]) -> None:
        mail.send(
            mail.message(sender="shop@shop.test", to="ada@example.org", subject="Hello", text="Ada"),
            via=mail.smtp("mail.shop.test"),
        ).perform("tp_1")

    @app.flow(key="order:{order[id]}")
    def welcome(order: dict[str, int]) -> None:
        assert app.flows  # by this name prove finds the app
        greet(order)

    @app.flow(key="naive:{order[id]}")
    def welcome_naively(order: dict[str, int]) -> None:
        assert app.flows  # by this name prove finds the app
        greet_again_and_again(order)

    with SmtpWorld(["mail.shop.test"]) as world:
        assert proved(welcome, world).good
        with pytest.raises(NotSafe, match=r"mail\.send\(message, via=…\), with look=mail\.imap"):
            proved(welcome_naively, world)


def test_the_kind_of_a_step_is_the_one_with_which_it_acted() -> None:
    acted = (TimelineEvent(1, "write 1"), TimelineEvent(1, "charge acts", kind="keyed"))
    assert declarations([ScenarioOutcome("done", events=acted)]) == {"charge": "keyed"}


@pytest.mark.parametrize(("place", "option"), [("mail.test:587", "--smtp"), ("mail.test:993", "--imap")])
def test_a_host_without_a_stand_in_is_named_with_the_option_for_its_port(place: str, option: str) -> None:
    with pytest.raises(Misuse, match=f"Name it with {option} mail.test "):
        refuse_elsewhere("One clean run", [place])


def test_a_folder_without_a_sink_is_refused() -> None:
    with ExitStack() as stack, pytest.raises(Misuse, match="--smtp HOST"):
        WorldOptions(imap=("imap.shop.test",)).open(stack)


def test_the_command_is_given_again_with_its_provider_and_its_folder() -> None:
    given = WorldOptions(provider=("mollie=api.mollie.test",), smtp=("mail.test",), imap=("imap.test",))
    assert given.words() == ["--provider", "mollie=api.mollie.test", "--smtp", "mail.test", "--imap", "imap.test"]
    with ExitStack() as stack:
        assert len(given.open(stack)) == 3


# -- a lost answer of a provider -----------------------------------------------------------------


def test_the_answer_that_is_lost_is_that_of_the_request_that_was_named(app: App) -> None:
    """Reads are requests, too."""

    @app.flow(key="order:{order[id]}")
    def pay(order: dict[str, int]) -> str:
        app.effects.http.get(f"{CHARGES}?limit=1")
        return str(app.effects.http.post(CHARGES, form={"amount": 5}, provider="stripe")["id"])

    with ProviderWorld("stripe") as world:
        report = proved(pay, world)
    assert [one.word for one in report.verdicts if one.scenario.startswith("answer-lost")] == ["same", "same"]


def command(*words: str) -> Result:
    return CliRunner().invoke(cli, ["prove", *words])


def test_an_effect_of_files_is_proved_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "exports", raising=False)
    (tmp_path / "out").mkdir()
    (tmp_path / "order.json").write_text('{"id": 17}')
    (tmp_path / "exports.py").write_text(
        "from twiceproof import App\napp = App('memory://')\n"
        "@app.flow(key='order:{order[id]}')\ndef export(order):\n"
        "    app.effects.files.append('out/orders.jsonl', {'order': order['id']})\n"
    )
    done = command("exports:export", "--event", "order.json", "--files", "out", "--depth", "1")
    assert done.exit_code == 0, done.output
    assert "killed before every step, and between its effect and its record" in done.output
