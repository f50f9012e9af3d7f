"""An app with a queue in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.inbound.queues.post_office import PostOffice, post_office
from twiceproof import App


@pytest.fixture
def app() -> Iterator[App]:
    with App("memory://") as made:
        yield made


@pytest.fixture
def office(app: App) -> Iterator[PostOffice]:
    with post_office(app) as made:
        yield made
