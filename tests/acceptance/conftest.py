"""Everything in this directory starts processes: it is left out of `make check`."""

from pathlib import Path

import pytest

from tests.acceptance.places import place

__all__ = ["place"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.slow)
