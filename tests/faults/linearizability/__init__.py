"""Histories: what many callers asked of the claims and were told, and whether one order explains all of it."""

from tests.faults.linearizability.append import Append, AppendVerdict, check_appends
from tests.faults.linearizability.checker import Linearizable, Unknown, Verdict, Violation, check, draw
from tests.faults.linearizability.model import Model, Operation, State

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
