"""From an order to its booking: the page's files and commands in an empty directory, with a real RabbitMQ."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import timeout_by_progress
from tests.docs.blocks import ROOT, blocks, commands, says
from tests.servers.rabbitmq import RabbitServer

pytestmark = [pytest.mark.server, pytest.mark.slow]
PAGE = ROOT / "docs/how-to/from-order-to-consumer.md"
ORDERS = 80
BY_A_SIGNAL = (124, 137, -9)  # what `timeout` and the shell report


class Directory:
    """An empty directory, and a shell in it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        programs, timeout = Path(sys.executable).parent, timeout_by_progress.placed(folder / "bin")
        self.env = {**os.environ, "RABBIT_URL": url, "PATH": f"{timeout}:{programs}:{os.environ['PATH']}"}
        self.env.pop("TWICEPROOF_STORE", None)

    def type(self, text: str) -> str:
        done = subprocess.run(
            ["bash", "-c", text],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode in (0, *BY_A_SIGNAL), done.stderr
        return done.stdout

    def count(self, database: str, sql: str) -> int:
        with sqlite3.connect(self.folder / database) as opened:
            (found,) = opened.execute(f"SELECT count(*) FROM {sql}").fetchone()
        return int(found)


@pytest.fixture
def here(tmp_path: Path, rabbit_server: RabbitServer) -> Directory:
    pytest.importorskip("sqlalchemy")
    made = Directory(tmp_path, rabbit_server.url)
    for block in blocks(PAGE):
        if block.language == "python":
            (tmp_path / block.text.partition("\n")[0].removeprefix("# ")).write_text(block.text)
    return made


def test_the_pages_commands_book_each_order_once_and_trace_shows_it(here: Directory) -> None:
    killed_in_the_middle = 0
    for block in blocks(PAGE):
        if block.language == "bash" and not block.text.startswith("pip install"):
            for line in [block.text] if block.text.startswith("python -c") else block.text.splitlines():
                here.type(line)
                if "KILL 3 python shop.py" in line:
                    assert here.count("shop.db", "orders") < ORDERS
                    assert here.count("shop.db", timeout_by_progress.UNSENT) > 0
                    killed_in_the_middle += 1
                if "KILL 2.5 twiceproof work" in line:
                    assert here.count("billing.db", "bookings") < ORDERS
                    killed_in_the_middle += 1
        for line, said in commands(block) if block.language == "console" else ():
            heard = here.type(line)
            assert says(said, heard), heard
    assert killed_in_the_middle == 2
