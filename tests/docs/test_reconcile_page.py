"""Find duplicates that slipped through: the page's commands in an empty directory, from a second invoice to its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks, commands, says

pytestmark = pytest.mark.slow
PAGE = ROOT / "docs/how-to/reconcile.md"
FOUND = 3  # the exit code of a run with findings


def test_the_pages_commands_find_a_second_invoice_and_void_it_after_an_approval(tmp_path: Path) -> None:
    (shop,) = (block for block in blocks(PAGE) if block.language == "py")
    (tmp_path / "shop.py").write_text(shop.text)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "TWICEPROOF_STORE": "sqlite:///shop.db"}
    typed = [pair for block in blocks(PAGE) if block.line > shop.line for pair in commands(block)]
    assert [line.split()[0] for line, _ in typed].count("twiceproof") == 6
    for line, said in typed:
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode in (0, FOUND), done.stderr
        assert says(said, done.stdout), done.stdout
