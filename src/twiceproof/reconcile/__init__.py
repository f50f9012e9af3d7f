"""Reconciliation: find duplicates, and what is missing or different at a destination, after the fact.

The readers, and what `then=` takes. The rest is reached through `@app.reconcile` and its `find`.
"""

from .actions import Cap, compensate, notify, start
from .checks import Comparison
from .find import Finder
from .pages import http_pages
from .readers import csv_rows, file_rows, sql_rows

__all__ = [
    "Cap",
    "Comparison",
    "Finder",
    "compensate",
    "csv_rows",
    "file_rows",
    "http_pages",
    "notify",
    "sql_rows",
    "start",
]
