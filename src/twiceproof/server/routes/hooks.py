"""Webhooks: what outside senders post."""

from __future__ import annotations

from ..route import Route

__all__ = ["ROUTES"]

ROUTES: tuple[Route, ...] = ()
