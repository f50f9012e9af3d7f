"""The quickstart, from top to bottom, as a reader would: its Python, its commands, its server, and what they print."""

from __future__ import annotations

import contextlib
import io
import subprocess

import pytest
from click.testing import CliRunner

from tests.acceptance.http_shop import HttpShop
from tests.docs.blocks import ROOT, Block, blocks, commands, says
from tests.docs.typed import typed
from twiceproof.cli.main import cli

PAGE = ROOT / "docs/quickstart.md"
NOT_HERE = ("pip install ", "export ", "twiceproof serve ", "twiceproof doctor")  # set-up, or another machine's


class Reader:
    """Follows the page in one directory; what Python printed is compared when the page says it."""

    def __init__(self, shop: HttpShop) -> None:
        self.shop = shop
        self.names: dict[str, object] = {"__name__": "document"}
        self.printed = io.StringIO()
        self.ran = 0

    def follow(self, block: Block) -> None:
        if block.language == "python":
            with contextlib.redirect_stdout(self.printed):
                exec(compile("\n" * (block.line - 1) + block.text, str(PAGE), "exec"), self.names)
        elif block.language == "text":
            assert self.printed.getvalue() == block.text, block.line
            self.printed = io.StringIO()
        elif block.language == "console":
            for line, said in commands(block):
                self.type(line, said)

    def type(self, line: str, said: str) -> None:
        if line.startswith("twiceproof serve hotel:app"):
            self.serve()
        if not line.startswith(NOT_HERE):
            heard = self.run(line)
            assert says(said, heard), (line, heard)
            self.ran += 1

    def run(self, line: str) -> str:
        if line.startswith("curl "):
            line = line.replace("http://127.0.0.1:8000", self.shop.url)
            return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=True).stdout
        (words,) = typed(line)
        return CliRunner().invoke(cli, words, catch_exceptions=False).output

    def serve(self) -> None:
        """The last Python of the page is hotel.py."""
        hotel = [block.text for block in blocks(PAGE) if block.language == "python"][-1]
        (self.shop.folder / "hotel.py").write_text(hotel)
        (self.shop.folder / "shop.py").write_text("from hotel import app\n")
        self.shop.start()


@pytest.mark.slow
def test_the_quickstart_does_what_it_says_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TWICEPROOF_STORE", raising=False)
    reader = Reader(HttpShop(tmp_path))
    try:
        for block in blocks(PAGE):
            reader.follow(block)
    finally:
        reader.shop.kill()
    assert reader.ran == 6


def test_every_line_of_a_console_of_the_quickstart_is_typed_or_said():
    consoles = [block for block in blocks(PAGE) if block.language == "console"]
    assert len(consoles) == 5
    assert all(block.text.startswith("$ ") for block in consoles)
