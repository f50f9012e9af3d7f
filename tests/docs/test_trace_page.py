"""The page about traces: its command shows the chain that its Python has played."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.docs.blocks import ROOT, blocks, commands, says
from tests.docs.test_documents import run
from tests.docs.typed import typed
from twiceproof.cli.main import cli

PAGE = ROOT / "docs/how-to/follow-a-key.md"


def test_the_page_shows_the_chain_that_it_has_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(PAGE, blocks(PAGE))
    ((line, said),) = [pair for block in blocks(PAGE) if block.language == "console" for pair in commands(block)]
    (words,) = typed(line)
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0 and says(said, done.output), done.output
