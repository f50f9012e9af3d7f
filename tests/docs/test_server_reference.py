"""The server's page cannot drift: every kind of refusal is on it, with its status."""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT
from twiceproof.server.problems import MEANINGS

PAGE = ROOT / "docs/reference/server.md"


def test_every_kind_of_refusal_is_on_the_servers_page():
    page = PAGE.read_text("utf-8")
    paths = [path for place in ("server", "inbound") for path in (ROOT / "src/twiceproof" / place).rglob("*.py")]
    sources = [path.read_text("utf-8") for path in paths]
    kinds = {found for text in sources for found in re.findall(r'\w\(\s*(\d{3}),\s*"([a-z-]+)"', text)}
    kinds |= {(str(status), word) for _, status, word in MEANINGS}
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    missing = [one for one in sorted(kinds) if not any(f"`{one[1]}`" in row and f"| {one[0]} |" in row for row in rows)]
    assert len(kinds) > 40
    assert missing == []


def test_every_refusal_says_what_it_means_and_what_to_do():
    rows = re.findall(r"^\| (?:4|5)\d\d \| `([a-z-]+)` \| (.*?) \| (.*?) \|$", PAGE.read_text("utf-8"), re.M)
    assert [kind for kind, said, move in rows if not said.strip("… ") or not move.strip("… ")] == []
