"""`twiceproof prove` and the fixture: what they print, what they leave behind, what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from click.testing import CliRunner, Result

from twiceproof.cli.main import cli
from twiceproof.prove.report import Report

from .flows import safe

PAGE = (Path(__file__).parents[3] / "docs/how-to/prove-a-flow.md").read_text()
CODE = PAGE.partition("```python\n")[2].partition("```")[0]

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


def test_one_scene_can_be_played_alone_and_told_in_json_and_junit(shop: Path) -> None:
    done = run("--files", "out", "--scene", "lost-2", "--json", "--junit", "verdicts.xml")
    told = msgspec.json.decode(done.output)
    assert (done.exit_code, told["safe"], told["planned"]) == (1, False, 1)
    assert told["verdicts"][0]["extra"] == {"mails.txt: Dear Ada": 1}
    suite = ElementTree.parse(shop / "verdicts.xml").getroot()
    assert (suite.get("failures"), suite[0].get("name"), suite[0][0].get("type")) == ("1", "lost-2", "twice")


def test_a_wrong_declaration_that_is_put_right_is_safe(shop: Path) -> None:
    (shop / "shop.py").write_text(CODE.replace('"safe")  # it is not: a line is added each time', '"never")'))
    done = run("--files", "out", "--scene", "lost-2")
    assert done.exit_code == 0 and "1 parked" in done.output


def test_calls_of_a_function_can_be_the_effect(shop: Path) -> None:
    (shop / "mailer.py").write_text("def send(name): ...\n")
    calling = CODE.replace("from pathlib", "import mailer\nfrom pathlib").replace(
        "with (OUT", 'mailer.send("Ada")\n    with (OUT'
    )
    (shop / "shop.py").write_text(calling)
    done = run("--calls", "mailer:send", "--scene", "lost-2")
    assert "mailer:send('Ada') (1 more)" in done.output
    assert "Not observed: save_order" in done.output


def test_a_budget_that_ends_early_is_told(shop: Path) -> None:
    done = run("--files", "out", "--time", "1ms", "--json")
    told = msgspec.json.decode(done.output)
    assert told["complete"] is False and told["safe"] is False and told["planned"] > 90


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "Nothing is looked at"),
        (("--files", "nowhere"), "is not a directory"),
        (("--calls", "nobody:knows"), "module:function"),
        (("--files", "out", "--scene", "nonsense"), "there are: twice, at-once"),
    ],
)
def test_what_cannot_be_played_is_refused_with_a_next_move(shop: Path, words: tuple[str, ...], says: str) -> None:
    done = run(*words)
    assert done.exit_code == 2 and says in done.output


def test_what_is_not_a_flow_is_refused(shop: Path) -> None:
    done = CliRunner().invoke(cli, ["prove", "shop:OUT", "--event", "order.json", "--files", "out"])
    assert done.exit_code == 2 and "under @app.flow" in done.output


def test_the_fixture_returns_the_report_of_a_safe_flow(prove: Callable[..., Report]) -> None:
    report = prove(safe.effect_in_the_body, {"id": 7}, world=lambda: list(safe.outside), depth=1)
    assert report.good and report.expected == {"mail 7": 1} and report.unobserved == ()
    assert safe.outside == []
