"""Reconciliation: finds duplicates, missing rows and differences at a destination, after the fact.

Exports the readers and the actions for `then=`; the rest is reached through `@app.reconcile` and its `find`.
"""

from .actions import Cap, compensate, notify, start
from .checks import Comparison
from .find import Finder
from .pages import http_pages
from .readers import csv_rows, file_rows, json_rows, sql_rows

__all__ = [
    "Cap",
    "Comparison",
    "Finder",
    "compensate",
    "csv_rows",
    "file_rows",
    "http_pages",
    "json_rows",
    "notify",
    "sql_rows",
    "start",
]
