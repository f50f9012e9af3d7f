"""Which part of a page is made by whom."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from . import (
    api,
    brokers,
    commands,
    errors,
    examples,
    figures,
    journeys,
    problems,
    providers,
    routes,
    server,
    settings,
    stores,
)
from .block import Maker

__all__ = ["DOCS", "MAKERS", "pages"]

DOCS = Path(__file__).parents[2] / "docs"
CONTRIBUTING = DOCS.parent / "CONTRIBUTING.md"

MAKERS: Mapping[str, Maker] = {
    "commands": commands.index,
    "command": commands.command,
    "common-options": commands.common,
    "exit-codes": commands.exit_codes,
    "settings": settings.settings,
    "error-tree": errors.tree,
    "errors": errors.details,
    "problems": problems.problems,
    "routes": routes.routes,
    "routes-at-a-glance": server.glance,
    "limits": server.limits,
    "metrics": server.metrics,
    "stores": stores.urls,
    "store-checks": stores.checks,
    "store-promises": stores.promises,
    "brokers": brokers.brokers,
    "examples": examples.examples,
    "app": api.constructor,
    "app-methods": api.app_methods,
    "public": api.public,
    "effect-block": api.effect_block,
    "public-errors": api.errors,
    "bench-figures": figures.figures,
    "journey": journeys.journey,
    "providers": providers.provider_table,
    "provider-notes": providers.provider_notes,
}


def pages() -> list[Path]:
    """Every page that has a generated part."""
    return [
        page for page in [CONTRIBUTING, *sorted(DOCS.rglob("*.md"))] if "<!-- generated: " in page.read_text("utf-8")
    ]
