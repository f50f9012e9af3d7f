"""A ledger and a bookkeeping server for the tests of flows in files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.declared.books import Books
from twiceproof import App


@pytest.fixture
def books() -> Iterator[Books]:
    made = Books()
    yield made
    made.close()


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with App(f"sqlite:///{tmp_path}/ledger.db") as made:
        yield made
