"""The suite that every webhook source passes."""

from __future__ import annotations

import pytest

from .authenticity import Forged, Replayed, RotatedSecretTests
from .events import AnswerTests, Arrays, EventIdTests, Poisonous, Sizes

__all__ = ["SourceContract"]


class SourceContract(Forged, Replayed, RotatedSecretTests, EventIdTests, Arrays, Poisonous, Sizes, AnswerTests):
    """What every source guarantees."""


# Before the modules are imported, so that a failing assertion shows its values.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in ("answers", "arrays", "case", "forged", "ids", "poison", "replayed", "rotated", "sizes")
    )
)
