"""Every route of the server."""

from __future__ import annotations

from ..route import Route
from . import hooks, operations

__all__ = ["ROUTES"]

ROUTES: tuple[Route, ...] = (*hooks.ROUTES, *operations.ROUTES)
