"""Move a ledger: the page's commands with a real PostgreSQL, in an empty directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks, commands, says

pytestmark = [pytest.mark.server, pytest.mark.slow]
PAGE = ROOT / "docs/how-to/move-a-ledger.md"
URL = "postgresql://db/shop"  # as the page calls it
REFUSED = "Error: "  # how the page's answer of a command that fails begins


def test_the_pages_commands_move_a_ledger_to_postgresql_and_nothing_is_done_again(
    tmp_path: Path, postgres_dsn: str
) -> None:
    (shop,) = (block for block in blocks(PAGE) if block.language == "py")
    (tmp_path / "shop.py").write_text(shop.text)
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    typed = [pair for block in blocks(PAGE) if block.line > shop.line for pair in commands(block)]
    assert sum(line.startswith("twiceproof") for line, _ in typed) == 5
    for line, said in typed:
        asked = line.replace(URL, postgres_dsn)
        name, is_export, value = asked.removeprefix("export ").partition("=")
        if line.startswith("export ") and is_export:
            env[name] = value
            continue
        done = subprocess.run(["bash", "-c", asked], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
        assert (done.returncode != 0) is said.startswith(REFUSED), done.stderr
        assert says(said, done.stderr if said.startswith(REFUSED) else done.stdout), done.stdout + done.stderr
