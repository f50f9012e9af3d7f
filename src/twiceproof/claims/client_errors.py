"""What errors of well-known clients say about the work: by the names of their classes, and by the status they carry.

No client is imported: to know its errors would cost every program that uses another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, Literal

from .said_by import said_by

__all__ = ["REFUSED_STATUS", "is_refusal", "names_of", "of_grpc", "status_of"]

# What a server sends instead of acting. Every other status may come after it acted, or from a proxy on the way (499).
REFUSED_STATUS = frozenset({
    400, 401, 403, 404, 405, 406, 410, 411, 412, 413, 414, 415, 416, 417, 421, 422, 423, 426, 428, 429, 431, 451,
})  # fmt: skip
# The same of gRPC. Not RESOURCE_EXHAUSTED: a client says so, too, of an answer that is larger than it takes. Not
# ALREADY_EXISTS: what is there may be ours.
REFUSED_CODES = frozenset({
    "INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "UNAUTHENTICATED", "FAILED_PRECONDITION", "OUT_OF_RANGE",
    "UNIMPLEMENTED",
})  # fmt: skip
STATUS_NAMES = ("status_code", "status", "code", "http_status")


def is_refusal(status: int) -> bool:
    return status in REFUSED_STATUS


def names_of(kind: type) -> set[str]:
    """Of a class and all that it descends from, with their modules."""
    return {f"{one.__module__}.{one.__qualname__}" for one in kind.__mro__}


def of_grpc(error: BaseException) -> Literal["clean", "ambiguous"] | None:
    """The status of a gRPC call, or of one that google-api-core wraps; None: it is about none."""
    for carrier in (error, said_by(error, "response")):
        if "grpc.RpcError" in names_of(type(carrier)):
            return "clean" if _code_of(carrier) in REFUSED_CODES else "ambiguous"
    return None


def _code_of(error: Any) -> str:
    code = said_by(error, "code")
    try:
        return str(code().name)
    except Exception:  # noqa: BLE001 - an RpcError of somebody's own, which has no status
        return ""


def status_of(error: BaseException) -> int | None:
    """The status of the answer that an HTTP client's error carries: httpx, requests, aiohttp, urllib, Stripe, boto."""
    response = said_by(error, "response")
    metadata = response.get("ResponseMetadata") if isinstance(response, Mapping) else None  # botocore's: parsed already
    told = metadata.get("HTTPStatusCode") if isinstance(metadata, Mapping) else None
    # One by one: aiohttp has a `status`, and warns of whoever asks for its `code`.
    found = (said_by(carrier, name) for name in STATUS_NAMES for carrier in (response, error))
    return next((status for status in chain(found, [told]) if isinstance(status, int) and 400 <= status < 600), None)
