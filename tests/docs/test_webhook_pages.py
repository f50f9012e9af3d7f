"""The pages about webhooks: their commands work as they stand there, and their table is true."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.contracts.sources.keys import certificate
from tests.contracts.sources.listener import Listener
from tests.docs.blocks import ROOT, blocks
from twiceproof.cli.main import cli
from twiceproof.cli.output import span
from twiceproof.inbound.sources import SOURCES, find_source

PAGE = ROOT / "docs/how-to/receive-webhooks.md"
OPTIONS = {"generic": {"id": "id", "signature": "X-S"}, "paypal": {"certificate": certificate()[0]}}


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """`shop.py` as the page has it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    first = next(block for block in blocks(PAGE) if block.language == "python")
    Path("shop.py").write_text(first.text)
    yield
    sys.modules.pop("shop", None)


def commands():
    """What a reader types, in order."""
    texts = [block.text for block in blocks(PAGE) if block.language == "console"]
    return [line.removeprefix("$ ") for text in texts for line in text.splitlines()]


def test_the_commands_of_the_page_take_one_webhook_in_from_nothing(shop, monkeypatch, capfd):
    export, listed, served, first, second, store, runs, run_shown, repeats, letters, replayed = commands()
    for line in (export, store):
        name, _, value = line.removeprefix("export ").partition("=")
        monkeypatch.setenv(name, value)
    assert run(listed) == (0, True)
    assert served == "twiceproof serve shop:app"
    sys.modules.pop("shop")
    import shop as module

    listener = Listener(module.app)
    try:
        answers = [run(line.replace("127.0.0.1:8000", listener.address), '"new"') for line in (first, second)]
    finally:
        listener.close()
    module.app.worker().run(until_idle=True)
    module.app.close()
    assert answers == [(0, True), (0, False)]
    assert capfd.readouterr().out == "paid: ch_1 2000\n"
    assert run(runs, "charge:ch_1") == run(run_shown, "mark_paid") == run(repeats, "stripe") == (0, True)
    assert run(letters, "No dead letters") == (0, True)
    assert replayed.startswith("twiceproof hooks replay shop:app ltr_")


def run(line: str, word: str = "") -> tuple[int, bool]:
    result = CliRunner().invoke(cli, shlex.split(line, comments=True)[1:])
    return result.exit_code, word in result.output


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_is_in_the_table_with_its_own_times_and_options(name):
    row = next(line for line in PAGE.read_text("utf-8").splitlines() if line.startswith(f"| `{name}` |"))
    source = find_source(name, **OPTIONS.get(name, {}))
    *_, tries, waits, options, _ = (cell.strip() for cell in row.split("|"))
    assert (tries, waits) == (_rounded_up(source.retry_window), f"{source.deadline:g} s")
    assert all(f"`{option}" in options or name == "generic" for option in _options(source) - {"key"})


def _rounded_up(seconds: float) -> str:
    unit = 86_400 if seconds >= 2 * 86_400 else 3_600 if seconds >= 2 * 3_600 else 60
    return span(-(-seconds // unit) * unit)


def _options(source) -> set[str]:
    from inspect import signature

    return set(signature(type(source)).parameters)


def test_every_option_of_the_generic_source_is_explained():
    text = PAGE.read_text("utf-8").partition("## Any other sender")[2]
    source = find_source("generic", id="id", signature="X-S")
    assert [option for option in _options(source) if f"`{option}`" not in text] == []


def test_the_source_of_the_other_page_keeps_the_contract():
    from tests.contracts.sources.broken.runner import failures

    names: dict[str, object] = {"__name__": "document"}
    first = next(b for b in blocks(ROOT / "docs/how-to/add-a-source.md") if b.language == "python")
    exec(first.text, names)
    assert failures(names["Acme"]) == {}
