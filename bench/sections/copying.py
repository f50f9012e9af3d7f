"""A ledger of many claims copied from SQLite to PostgreSQL, and compared there, beside the bare COPY of its rows."""

from __future__ import annotations

import itertools
import time
from contextlib import closing

from twiceproof.stores.copying import copy_ledger, open_bulk

from ..findings import Findings
from ..goals import line
from ..plan import Plan
from ..progress import Progress
from ..series import spread
from ..sites import Site

__all__ = ["measure_copying"]

PART = "ledger copy"
SAME = 10_000  # rows in one statement of the bare copy


def measure_copying(source: Site, target: Site, plan: Plan, progress: Progress) -> Findings:
    findings = Findings()
    url = source.fresh()
    open_bulk(url, create=True).close()
    numbers = itertools.count()
    source.fill(url, lambda: f"order:{next(numbers)}", plan.copied)
    with progress.heat("ledger copy", 2) as step:
        ours = _seconds_of_copy(url, target.fresh())
        step()
        bare = _seconds_of_load(url, target.fresh())
        step()
    findings.lines += [
        line("copy rate", PART, spread([plan.copied / ours])),
        line("copy beside load", PART, spread([bare / ours])),
    ]
    return findings


def _seconds_of_copy(source: str, target: str) -> float:
    with closing(open_bulk(source)) as one, closing(open_bulk(target, create=True)) as other:
        began = time.perf_counter()
        copy_ledger(one, other)
        return time.perf_counter() - began


def _seconds_of_load(source: str, target: str) -> float:
    """Reading and loading alone: nothing is compared, locked or resumed."""
    with closing(open_bulk(source)) as one, closing(open_bulk(target, create=True)) as other:
        began = time.perf_counter()
        for page in one.rows(size=SAME):
            other.load(page, None)
        return time.perf_counter() - began
