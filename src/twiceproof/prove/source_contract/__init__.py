"""The contract that every webhook source fulfils, as tests. Subclass it, return your source, and run pytest:

    from twiceproof.prove.source_contract import SourceContract

    class TestMySender(SourceContract):
        def make_source(self):
            return MySender()

A sender that signs the meaning of a body and not its bytes (a form's fields) sets `exact = False`; one that signs with
a private key, so that no secret is compared, sets `compares = False`. Both change what a test demands, and skip none.
"""

from __future__ import annotations

import pytest

# Before the modules are imported, so that a failing assertion shows its values.
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in ("case", "authenticity", "events")))

from .authenticity import Forged, Replayed, RotatedSecretTests  # noqa: E402
from .events import AnswerTests, Arrays, EventIdTests, Poisonous, Sizes  # noqa: E402

__all__ = ["SourceContract"]


class SourceContract(Forged, Replayed, RotatedSecretTests, EventIdTests, Arrays, Poisonous, Sizes, AnswerTests):
    """What every source guarantees."""
