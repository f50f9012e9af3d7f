"""Orphans: what crashed attempts left on a shelf, with no record that knows of it."""

from __future__ import annotations

from itertools import groupby

from ..drive import Operation
from ..errors import Misuse
from ..stores.base import Store
from .aside import Aside
from .claim import space_of_run
from .shelf import Kept, Shelf, file_of, is_ours, run_of

__all__ = ["DAY", "orphans", "remove_orphans"]

DAY = 86_400.0
PAGE = 1_000


def orphans(store: Store, shelf: Shelf, now: float, *, older_than: float = DAY) -> Operation[list[Kept]]:
    """Old ones only: what is new may be about to be recorded."""
    before = now - older_than
    found: list[Kept] = yield from Aside(
        lambda: [kept for kept in shelf.listing() if kept.changed_at < before and is_ours(kept.path)]
    )
    lost: list[Kept] = []
    for run, mine in groupby(sorted(found, key=lambda kept: kept.path), key=lambda kept: run_of(kept.path)):
        known = (yield from _files_of(store, run)) if run else set()
        lost += [kept for kept in mine if kept.path.rsplit("/", 1)[-1] not in known]
    return lost


def _files_of(store: Store, run: str) -> Operation[set[str]]:
    try:
        space = space_of_run(run)
    except Misuse:
        return set()
    files: set[str] = set()
    after: str | None = None
    while True:
        page = yield from store.scan("resource", space=space, after=after, limit=PAGE)
        files.update(file_of(record.at.key) for record in page.records)
        after = page.after
        if after is None:
            return files


def remove_orphans(store: Store, shelf: Shelf, now: float) -> Operation[int]:
    lost = yield from orphans(store, shelf, now)
    for kept in lost:
        yield from Aside(lambda kept=kept: shelf.remove(kept.path))  # type: ignore[misc]
    return len(lost)
