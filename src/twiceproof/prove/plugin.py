"""The pytest fixture: `prove(sync_order, order, world=lambda: sent)` fails unless the flow is safe to repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .report import ProofReport

__all__ = ["prove"]


@pytest.fixture
def prove() -> Callable[..., ProofReport]:
    """Run every scenario of a flow beside one clean run; return the report if nothing was doubled or lost."""
    from .fixture import prove as proving  # loaded when a test uses it

    return proving
