"""Every route of the server."""

from __future__ import annotations

from ..route import Route
from . import approvals, callbacks, claims, hooks, operations, reviews, runs

__all__ = ["ROUTES"]

ROUTES: tuple[Route, ...] = (
    *hooks.ROUTES, *claims.ROUTES, *runs.ROUTES, *callbacks.ROUTES, *approvals.ROUTES, *reviews.ROUTES,
    *operations.ROUTES,
)  # fmt: skip
