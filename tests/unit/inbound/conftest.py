"""Fixtures of the tests of inbound webhooks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.flows.stage import Stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()
