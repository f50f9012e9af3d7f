"""Every route of the server."""

from __future__ import annotations

from ..routing import Route
from . import approvals, callbacks, claims, health, reviews, runs, webhooks

__all__ = ["ROUTES"]


ROUTES: tuple[Route, ...] = (
    *webhooks.ROUTES,
    *claims.ROUTES,
    *runs.ROUTES,
    *callbacks.ROUTES,
    *approvals.ROUTES,
    *reviews.ROUTES,
    *health.ROUTES,
)
