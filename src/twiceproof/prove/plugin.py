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
    """Plays every scene of a flow beside one clean run; the report, if nothing happened twice and nothing was lost."""
    from .fixture import prove as proving  # loaded when a test asks for it

    return proving
