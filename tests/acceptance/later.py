"""Time goes by in a place, more than once: what each store's way of moving its clock does not agree on."""

from __future__ import annotations

from tests.acceptance.places import Place, PostgresPlace

__all__ = ["pass_time"]


def pass_time(place: Place, seconds: float) -> None:
    """For every process at once, from wherever the clock stands."""
    moved = place.directory / "moved"
    total = seconds + (float(moved.read_text()) if moved.exists() else 0.0)
    moved.write_text(str(total))
    place.advance(total if isinstance(place, PostgresPlace) else seconds)
