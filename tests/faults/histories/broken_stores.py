"""Stores that draw the wrong conclusion from a missing answer."""

from __future__ import annotations

from twiceproof.errors import StoreUnavailable
from twiceproof.stores.grouped import GroupedStore


class Forgetful(GroupedStore):
    """After a lost answer a conflict counts as another caller's, although it may be with the write's own first try."""

    def _recognise_lost_acknowledgement(self, batch, answer):
        return answer


class Overconfident(GroupedStore):
    """Treats a missing answer as nothing written."""

    def _outcome_after_retry(self, batch, answer):
        settled = super()._outcome_after_retry(batch, answer)
        if isinstance(settled, StoreUnavailable):
            settled.data["unsure"] = False
        return settled
