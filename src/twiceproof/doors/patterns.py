"""How names, keys and durations are written: told in descriptions. Who errs hears from us what is wrong, in words."""

from __future__ import annotations

from typing import Any

from ..keys.duration import LONGEST, UNITS
from ..keys.key import LONGEST_KEY

__all__ = ["KEEP", "KEY", "KEY_OR_NONE", "LEASE", "NAME_OR_NONE", "OPERATION", "SPAN", "UUID_OR_NONE"]

_NAME = "[A-Za-z0-9_.@-]"
_INNER = "[^\\u0000-\\u001f\\u007f-\\u009f\\u2028\\u2029]"  # no control characters
_EDGE = _INNER.replace("[^", "[^\\s")  # nor blanks at the ends
_KEY = f"{_EDGE}({_INNER}*{_EDGE})?"
# What the server itself claims under: see claim_service/reserved.py.
_RESERVED = r"(?!(hook|start|POST|PATCH|PUT|DELETE)\.)(?!http$)(?!@)(?!.*@(slots|order|letters|schedule|poll)$)"

Shape = dict[str, Any]

NAME_OR_NONE: Shape = {"pattern": f"^{_NAME}{{0,128}}$"}
OPERATION: Shape = {"type": "string", "pattern": f"^{_RESERVED}{_NAME}{{1,128}}$"}
KEY: Shape = {"type": "string", "pattern": f"^{_KEY}$", "maxLength": LONGEST_KEY}
# Drawn, not counted and not made of a name: versions 1, 4, 6 and 7.
UUID_OR_NONE: Shape = {
    "pattern": "^([0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[1467][0-9A-Fa-f]{3}-[89ABab][0-9A-Fa-f]{3}-[0-9A-Fa-f]{12})?$"
}
KEY_OR_NONE: Shape = {"pattern": f"^({_KEY})?$", "maxLength": LONGEST_KEY}


def _below(number: int) -> str:
    """Whole numbers below this one, as a pattern can say it: shorter, or less at the first digit that differs."""
    digits = str(number)
    less = [
        f"{digits[:place]}[0-{int(digit) - 1}][0-9]{{{len(digits) - place - 1}}}"
        for place, digit in enumerate(digits) if digit != "0"
    ]  # fmt: skip
    return "|".join([f"[0-9]{{1,{len(digits) - 1}}}", *less])


_MOST_DIGITS = 10**12 - 1
_WRITTEN = "|".join(
    rf"({_below(min(int(LONGEST / size), _MOST_DIGITS))})(\.[0-9]{{1,9}})? ?{unit}" for unit, size in UNITS.items()
)

SPAN: Shape = {"pattern": f"^({_WRITTEN})$"}
LEASE: Shape = {**SPAN, "not": {"pattern": rf"^[0.]* ?({'|'.join(UNITS)})$"}}
KEEP: Shape = {**LEASE, "pattern": f"{SPAN['pattern']}|^forever$"}
