"""Histories: what many callers asked of the claims and were told, and whether one order explains all of it."""

from .append import Append, AppendVerdict, check_appends
from .checker import Linearizable, Unknown, Verdict, Violation, check
from .model import Model, State
from .operation import Operation
from .sketch import draw

__all__ = [
    "Append",
    "AppendVerdict",
    "Linearizable",
    "Model",
    "Operation",
    "State",
    "Unknown",
    "Verdict",
    "Violation",
    "check",
    "check_appends",
    "draw",
]
