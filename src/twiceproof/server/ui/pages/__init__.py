"""All pages of the dashboard, one file for each noun."""

from __future__ import annotations

from ..dashboard import PageSpec
from . import (
    access,
    acts,
    approvals,
    claims,
    duplicates,
    findings,
    flows,
    health,
    home,
    keys,
    live,
    messages,
    review,
    run,
    runs,
    search,
    several,
    webhooks,
    workers,
)

__all__ = ["PAGES"]


PAGES: tuple[PageSpec, ...] = (
    *home.PAGES,
    *runs.PAGES,
    *run.PAGES,
    *several.PAGES,
    *review.PAGES,
    *approvals.PAGES,
    *search.PAGES,
    *keys.PAGES,
    *claims.PAGES,
    *duplicates.PAGES,
    *webhooks.PAGES,
    *messages.PAGES,
    *findings.PAGES,
    *flows.PAGES,
    *workers.PAGES,
    *health.PAGES,
    *live.PAGES,
    *acts.PAGES,
    *access.PAGES,
)
