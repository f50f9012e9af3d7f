"""The store that a test has. Everything in this directory starts processes: it is left out of `make check`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.places import Place, PostgresPlace, RedisPlace, SqlitePlace

HERE = Path(__file__).parent
FIXTURES = {"postgres": "postgres_dsn", "valkey": "redis_url", "valkey-cluster": "cluster_url"}
CLASSES = {"postgres": PostgresPlace, "valkey": RedisPlace, "valkey-cluster": RedisPlace}


@pytest.fixture(
    params=["sqlite", *(pytest.param(name, marks=pytest.mark.server) for name in FIXTURES)],
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Each store in turn."""
    if request.param == "sqlite":
        (tmp_path / "clock").write_text("0")
        yield SqlitePlace("", tmp_path)
        return
    url = request.getfixturevalue(FIXTURES[request.param])
    made = CLASSES[request.param](url, tmp_path)
    made.app().close()  # creates what there is to create
    yield made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.slow)
