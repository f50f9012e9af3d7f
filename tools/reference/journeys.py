"""The files that an everyday call enters, as CONTRIBUTING shows them."""

from __future__ import annotations

from functools import cache

from tools.journeys import Journey, listing, measured

__all__ = ["journey"]


def journey(name: str) -> list[str]:
    return ["```text", *listing(_journeys()[name]), "```"]


@cache
def _journeys() -> dict[str, Journey]:
    return measured()
