"""All routes of the server."""

from __future__ import annotations

from ..routing import ApiRoute
from . import (
    acts,
    approvals,
    callbacks,
    claims,
    dead_letters,
    duplicates,
    external_ids,
    flows,
    forks,
    health,
    keys,
    messages,
    reconciliations,
    reviews,
    runs,
    schedules,
    search,
    tokens,
    webhooks,
    workers,
)

__all__ = ["ROUTES"]


ROUTES: tuple[ApiRoute, ...] = (
    *webhooks.ROUTES,
    *claims.ROUTES,
    *runs.ROUTES,
    *forks.ROUTES,
    *callbacks.ROUTES,
    *approvals.ROUTES,
    *reviews.ROUTES,
    *reconciliations.ROUTES,
    *messages.ROUTES,
    *acts.ROUTES,
    *duplicates.ROUTES,
    *search.ROUTES,
    *keys.ROUTES,
    *external_ids.ROUTES,
    *schedules.ROUTES,
    *flows.ROUTES,
    *tokens.ROUTES,
    *dead_letters.ROUTES,
    *workers.ROUTES,
    *health.ROUTES,
)
