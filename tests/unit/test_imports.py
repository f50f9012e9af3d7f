"""What `import twiceproof` costs, and that the layers import one way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "twiceproof"
EVERYTHING = "from twiceproof import *"  # `import twiceproof` alone loads nothing: it would prove nothing
PARTS = "import asyncio, sqlite3, msgspec"
SHOW = "import sys, json; print(json.dumps(sorted(sys.modules)))"


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def modules(code: str) -> set[str]:
    return set(json.loads(run(f"{code}\n{SHOW}")))


def test_importing_the_package_brings_no_driver_and_no_extra() -> None:
    found = modules(EVERYTHING)
    assert {"twiceproof.app.app", "twiceproof.claims.once"} <= found
    heavy = {"rich", "psycopg", "redis", "click", "starlette", "uvicorn", "httpx", "requests", "aiohttp", "hypothesis"}
    assert {name.partition(".")[0] for name in found}.isdisjoint(heavy)
    assert not {name for name in found if name.startswith(("twiceproof.prove", "twiceproof.cli"))}


def test_importing_the_package_brings_little_more_than_its_parts() -> None:
    """Standard modules that cost milliseconds each must not come in by the way."""
    parts = modules(PARTS)
    extra = modules(EVERYTHING) - parts
    ours = {name for name in extra if name.startswith("twiceproof")}
    foreign = {name.partition(".")[0] for name in extra - ours}
    costly = {"http", "email", "xml", "unittest", "multiprocessing", "ssl", "urllib.request", "pickle"}
    assert foreign.isdisjoint(costly - {name.partition(".")[0] for name in parts})
    assert len(foreign) < 40, sorted(foreign)


def test_a_memory_store_brings_no_database_and_a_file_no_driver(tmp_path: Path) -> None:
    found = modules("from twiceproof import App; App('memory://').close()")
    assert {"sqlite3", "psycopg", "redis"}.isdisjoint(found)
    found = modules(f"from twiceproof import App; App('sqlite:///{tmp_path}/x.db').close()")
    assert {"psycopg", "redis"}.isdisjoint(found)


@pytest.mark.parametrize("name", ["records", "errors", "threads", "settings", "version"])
def test_the_lowest_layer_imports_nothing_of_ours(name: str) -> None:
    text = (SRC / f"{name}.py").read_text()
    assert not [
        line for line in text.splitlines() if line.startswith(("from .", "from twiceproof", "import twiceproof"))
    ]


def test_a_name_is_loaded_when_it_is_asked_for_and_not_before() -> None:
    assert not {name for name in modules("import twiceproof") if name.startswith("twiceproof.")} - {
        "twiceproof.version"
    }
    assert "twiceproof.app.app" in modules("import twiceproof; twiceproof.App")


def test_every_public_name_is_there_and_no_other() -> None:
    import twiceproof

    assert all(getattr(twiceproof, name) is not None for name in twiceproof.__all__)
    with pytest.raises(AttributeError):
        twiceproof.Nothing  # noqa: B018
