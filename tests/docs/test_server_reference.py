"""The server's page cannot drift: its tables are what the code says. Run as a module, it writes them."""

from __future__ import annotations

import re

import pytest
from msgspec import structs

from twiceproof.server.limits import Limits
from twiceproof.server.metrics import DOCUMENTED
from twiceproof.server.policy import POLICY
from twiceproof.server.problems import MEANINGS
from twiceproof.server.routes.table import ROUTES

from .blocks import ROOT

PAGE = ROOT / "docs/reference/server.md"
OF = {
    "connections": "connections at once",
    "requests": "requests under way at once, once they are read",
    "bodies": "bytes of bodies over 64 KiB that are read or worked on, all together",
    "head": "bytes of the request line and all headers",
    "headers": "headers",
    "deadline": "seconds in which head and body must be here",
    "idle": "seconds between two requests of one connection",
    "depth": "brackets inside each other in JSON",
    "per_token": "requests per second of one token",
    "per_source": "requests per second of one address without a token",
}


def row(*cells: object) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"


def tables() -> dict[str, list[str]]:
    defaults = structs.asdict(Limits())
    return {
        "routes": [row(f"`{r.method} {r.path}`", POLICY[r.method, r.path].value, r.summary) for r in ROUTES],
        "limits": [row(f"`{name}`", _number(value), OF[name]) for name, value in defaults.items()],
        "metrics": [row(f"`{name}`", text) for name, text in DOCUMENTED.items()],
    }


def place(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name} -->\n[^\n]*\n[^\n]*\n)(.*?)(<!-- end -->)", re.S)


@pytest.mark.parametrize("name", ["routes", "limits", "metrics"])
def test_a_table_of_the_servers_page_is_what_the_code_says(name):
    found = place(name).search(PAGE.read_text("utf-8"))
    assert found is not None
    assert found[2].splitlines() == tables()[name], "run: python -m tests.docs.test_server_reference"


def test_every_kind_of_refusal_is_on_the_servers_page():
    page = PAGE.read_text("utf-8")
    paths = [path for place in ("server", "doors") for path in (ROOT / "src/twiceproof" / place).rglob("*.py")]
    sources = [path.read_text("utf-8") for path in paths if path.parent.name != "idempotency"]  # has its own page
    kinds = {found for text in sources for found in re.findall(r'\w\(\s*(\d{3}),\s*"([a-z-]+)"', text)}
    kinds |= {(str(status), word) for _, status, word in MEANINGS}
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    missing = [one for one in sorted(kinds) if not any(f"`{one[1]}`" in row and f"| {one[0]} |" in row for row in rows)]
    assert missing == []


def main() -> None:
    text = PAGE.read_text("utf-8")
    for name, rows in tables().items():
        text = place(name).sub(lambda found, rows=rows: found[1] + "\n".join(rows) + "\n" + found[3], text)
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
