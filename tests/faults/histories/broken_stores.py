"""Stores that draw the wrong conclusion from silence."""

from __future__ import annotations

from twiceproof.errors import StoreUnavailable
from twiceproof.stores.grouped import GroupedStore


class Forgetful(GroupedStore):
    """After a lost reply a conflict is taken at its word, although it may be with the write's own first try."""

    def _recognise(self, batch, answer):
        return answer


class Overconfident(GroupedStore):
    """No answer means: nothing was written."""

    def _settle(self, batch, answer):
        settled = super()._settle(batch, answer)
        if isinstance(settled, StoreUnavailable):
            settled.data["unsure"] = False
        return settled
