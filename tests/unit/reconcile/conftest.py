"""Fixtures of the reconciliation's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.flows.stage import Stage
from tests.unit.reconcile.shop import Shop


@pytest.fixture
def shop() -> Iterator[Shop]:
    stage = Stage()
    yield Shop(stage)
    stage.close()
