"""All routes of the server."""

from __future__ import annotations

from ..routing import ApiRoute
from . import approvals, callbacks, claims, findings, health, reviews, runs, webhooks

__all__ = ["ROUTES"]


ROUTES: tuple[ApiRoute, ...] = (
    *webhooks.ROUTES,
    *claims.ROUTES,
    *runs.ROUTES,
    *callbacks.ROUTES,
    *approvals.ROUTES,
    *reviews.ROUTES,
    *findings.ROUTES,
    *health.ROUTES,
)
