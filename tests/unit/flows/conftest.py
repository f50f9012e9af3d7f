"""Fixtures of the flows' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.flows.stage import Stage, Style


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()


@pytest.fixture(params=["def", "async def"])
def style(request: pytest.FixtureRequest) -> Style:
    return Style(request.param)
