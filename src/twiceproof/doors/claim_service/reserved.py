"""Operations that are not to be claimed over HTTP: other doors keep under them what they later believe.

Whoever could claim `start.pay` could say which run a request had started, and have another's shown.
"""

from __future__ import annotations

import re
from collections.abc import Container

from ...errors import Misuse

__all__ = ["refuse_reserved"]

RESERVED = re.compile(
    r"(?:hook|start|POST|PATCH|PUT|DELETE)\..*|http|@.*|.*@(?:slots|order|letters|schedule|poll)", re.ASCII
)


def refuse_reserved(operation: str, flows: Container[str]) -> None:
    if operation in flows:
        raise Misuse(f"{operation} is a flow; start it with: POST /v1/runs/{operation}")
    if RESERVED.fullmatch(operation):
        raise Misuse(f"{operation} is a name that the server itself claims under; choose another one for your own.")
