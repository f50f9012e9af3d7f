"""Brokers that each break one promise. The contract suite must catch every one of them."""

from tests.contracts.brokers.broken import ordered, publishing, receiving, settling
from tests.contracts.brokers.broken.catalogue import BROKEN, Broken

__all__ = ["BROKEN", "Broken", "ordered", "publishing", "receiving", "settling"]
