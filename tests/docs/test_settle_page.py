"""The pages about settling: each of their commands, on a claim or a run that is in review."""

from __future__ import annotations

import contextlib

import pytest
from click.testing import CliRunner

from tests.docs.blocks import ROOT, blocks, commands, says
from tests.docs.typed import typed
from twiceproof import App, NeedsReview
from twiceproof.cli.main import cli

PAGE = ROOT / "docs/how-to/settle-a-claim.md"
RUNS = ROOT / "docs/how-to/settle-a-run.md"
TYPED = [pair for block in blocks(PAGE) if block.language == "console" for pair in commands(block)]
TYPED_OF_RUNS = [line for block in blocks(RUNS) if block.language == "console" for line, _ in commands(block)]


@pytest.mark.parametrize(("line", "said"), TYPED, ids=[line for line, _ in TYPED])
def test_a_command_of_the_page_does_what_it_says_to_a_claim_in_review(line, said, tmp_path, monkeypatch):
    monkeypatch.setenv("TWICEPROOF_STORE", f"sqlite:///{tmp_path}/shop.db")
    with App() as app, contextlib.suppress(NeedsReview), app.claim("ship", "order:17"):
        raise TimeoutError("no answer from the carrier")
    (words,) = typed(line)
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert says(said, done.output) if said.strip() else done.output


@pytest.mark.parametrize("line", TYPED_OF_RUNS)
def test_a_command_of_the_page_about_runs_finds_the_ledger_that_the_page_made(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TWICEPROOF_STORE", raising=False)
    with App(f"sqlite:///{tmp_path}/shop.db") as app:

        @app.step
        def charge(order):
            raise TimeoutError("no answer")

        @app.flow(key="order:{order}")
        def buy(order):
            charge(order)

        with pytest.raises(NeedsReview):
            buy(17)
    (words,) = typed(line)
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
