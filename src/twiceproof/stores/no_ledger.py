"""What is said where a ledger was to be looked at, and there is none: looking must not make one."""

from __future__ import annotations

from ..errors import StoreError

__all__ = ["POINT", "NoLedger"]

POINT = "point to one with --store URL or TWICEPROOF_STORE"


class NoLedger(StoreError):
    """There is no ledger where the URL points. Carries `findings`, where the server could be examined without one."""
