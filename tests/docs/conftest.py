"""Fixtures for tests of documents."""

from __future__ import annotations

from collections import defaultdict

import pytest

from twiceproof.brokers import memory


@pytest.fixture(autouse=True)
def no_messages_of_another_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """`memory://` brokers last as long as their process, and take a message of the same key for the one they have."""
    monkeypatch.setattr(memory, "_shared", defaultdict(memory.MemoryQueues))
