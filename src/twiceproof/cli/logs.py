"""Where log lines go when we are the program: to stderr, each with the run that it is about."""

from __future__ import annotations

import logging
import sys

from ..flows.workers.log import FORMAT, JsonLines, RunFilter, TextLines

__all__ = ["set_up_logs"]


def set_up_logs(*, as_json: bool) -> None:
    """If the user's module has set up logging, its handlers stay, and can use the same fields."""
    root = logging.getLogger()
    if not root.handlers:
        ours = logging.StreamHandler(sys.stderr)
        ours.setFormatter(JsonLines() if as_json else TextLines(FORMAT))
        root.addHandler(ours)
        root.setLevel(logging.INFO)
    for handler in root.handlers:
        handler.addFilter(RunFilter())
    if logging.getLogger("twiceproof").level == logging.NOTSET:
        logging.getLogger("twiceproof").setLevel(logging.INFO)
