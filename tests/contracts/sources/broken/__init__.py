"""Sources that each break one promise. The contract must catch every one of them."""

from tests.contracts.sources.broken import answering, believing, reading
from tests.contracts.sources.broken.catalogue import BROKEN, Broken

__all__ = ["BROKEN", "Broken", "answering", "believing", "reading"]
