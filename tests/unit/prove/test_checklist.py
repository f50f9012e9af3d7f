"""The checklist: each rule is found where it is broken, and nowhere else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from tests.unit.prove.apps import safe_shop, unsafe_shop
from twiceproof import App
from twiceproof.cli.main import cli
from twiceproof.inbound.source import Source
from twiceproof.prove.checklist import check_app
from twiceproof.prove.checklist.rules import RULES

EXPECTED = re.compile(r"# expect: ([a-z-]+)")


def test_every_broken_rule_is_found_on_its_line_and_nothing_else_is() -> None:
    file = Path(unsafe_shop.__file__)
    wanted = {
        (found[1], number)
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if (found := EXPECTED.search(line))
    }
    assert {(finding.rule, finding.line) for finding in check_app(unsafe_shop.app)} == wanted


def test_nothing_is_found_in_the_same_shop_written_as_advised() -> None:
    assert check_app(safe_shop.app) == []


def test_every_rule_has_a_place_where_it_is_broken() -> None:
    broken = {finding.rule for finding in check_app(unsafe_shop.app)} | {"short-keep"}
    assert broken == set(RULES)


class Patient(Source):
    name, signed, retry_window = "patient", False, 3 * 86_400.0


@pytest.mark.parametrize(("keep", "found"), [("1h", ["short-keep"]), ("4d", [])])
def test_a_key_that_is_forgotten_before_its_sender_gives_up_is_found(keep: str, found: list[str]) -> None:
    with App("memory://") as app:

        @app.webhook(Patient(), keep="30d")
        @app.flow(key="order:{order[id]}", keep=keep)
        def sync(order: dict[str, Any]) -> None: ...

        assert [finding.rule for finding in check_app(app)] == found


@pytest.mark.parametrize(("undo", "found"), [(False, ["missing-undo"]), (True, [])])
def test_a_transaction_that_nobody_undoes_is_found(tmp_path: Path, undo: bool, found: list[str]) -> None:
    """It is committed when its step ends, and stays so when a later step fails."""
    with App(f"sqlite:///{tmp_path / 'ledger.db'}") as app:

        @app.transaction(undo=(lambda order: None) if undo else None)
        def book(connection: Any, order: dict[str, Any]) -> None: ...

        @app.step(repeat="safe")
        def tell(order: dict[str, Any]) -> None: ...

        @app.flow(key="order:{order[id]}")
        def sync(order: dict[str, Any]) -> None:
            book(order)
            tell(order)

        assert [finding.rule for finding in check_app(app)] == found


@pytest.mark.parametrize(("resources", "found"), [("", ["unkept-result"]), ("dir://{}", [])])
def test_a_result_of_any_size_needs_a_place(tmp_path: Path, resources: str, found: list[str]) -> None:
    with App("memory://", resources=resources.format(tmp_path)) as app:

        @app.step(repeat="safe")
        def report(path: str) -> bytes:
            return Path(path).read_bytes()

        @app.flow(key="report:{path}")
        def keep(path: str) -> int:
            return len(report(path))

        assert [finding.rule for finding in check_app(app)] == found


def test_a_flow_whose_source_cannot_be_read_is_passed_over() -> None:
    with App("memory://") as app:
        space: dict[str, Any] = {}
        exec("def made(order): ...", space)
        app.flow(key="order:{order[id]}")(space["made"])
        assert check_app(app) == []


def test_the_command_says_file_and_line_why_and_what_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    done = CliRunner().invoke(cli, ["check", "tests.unit.prove.apps.unsafe_shop:app"])
    assert done.exit_code == 1
    assert re.search(r"tests/unit/prove/apps/unsafe_shop.py:\d+: unit-of-work: no_unit: ", done.output)
    assert "Why: " in done.output and "Instead: " in done.output


def test_what_to_write_instead_names_the_provider_that_was_found() -> None:
    told = {(one.where, one.instead) for one in check_app(unsafe_shop.app) if one.rule == "window-too-long"}
    row = 'Let its row decide: repeat=provider("{0}"), or http.post(…, provider="{0}") without repeat=.'
    assert told == {
        ("mails_with_a_day", row.format("brevo")),
        ("pays_with_two_months", row.format("qonto")),
    }


def test_the_command_lists_how_each_step_may_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    done = CliRunner().invoke(cli, ["check", "tests.unit.prove.apps.described_shop:app", "--steps", "--json"])
    told = {one["step"]: one["repeat"] for one in msgspec.json.decode(done.output)["steps"]}
    assert told == {
        "pays": "keyed",
        "refunds": "keyed",
        "pays_by_its_own_word": "keyed",
        "saves": "safe",
        "invoices": "check",
        "mails": "never",
        "mails_and_looks": "check",
        "mails_by_draft": "check",
        "mails_by_gmail": "check",
        "changes": "safe",
        "changes_by_mark": "check",
        "chooses": "",
        "counts": "safe",
        "decides": "never",
    }
    shown = CliRunner().invoke(cli, ["check", "tests.unit.prove.apps.described_shop:app", "--steps"]).output
    rows = [line.split() for line in shown.splitlines()]
    assert ["pays", "keyed", "refunds"] in rows and ["chooses", "as", "its", "effect", "says", "-"] in rows


def test_the_command_answers_in_json_and_is_content_with_a_safe_app(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    done = CliRunner().invoke(cli, ["check", "tests.unit.prove.apps.safe_shop:app", "--json"])
    assert done.exit_code == 0
    assert msgspec.json.decode(done.output) == {
        "app": "tests.unit.prove.apps.safe_shop:app",
        "flows": 10,
        "guarded_functions": 1,
        "findings": [],
    }


def test_the_how_to_shows_what_the_command_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/check-a-design.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    said = page.partition("$ twiceproof check shop:app\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(code)
    assert CliRunner().invoke(cli, ["check", "shop:app"]).output == said


def test_every_rule_is_on_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/check-a-design.md").read_text()
    missing = [rule.name for rule in RULES.values() if f"| `{rule.name}` | {rule.why} | {rule.instead} |" not in page]
    assert missing == []
