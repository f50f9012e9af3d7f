"""What Redis' errors mean for us: not here, not now, full, or ours to fix."""

from __future__ import annotations

import re

from ..errors import StoreError, StoreFull

__all__ = ["Broken", "Elsewhere", "IsReplica", "NotNow", "is_turned_away", "is_unknown_script", "named", "understood"]


class Elsewhere(Exception):
    """The slot has moved or is moving; nothing was done. Look at the map, then ask again."""


class NotNow(Exception):
    """The server is there but does not serve: it loads, has no master, no slots, no replicas. Nothing was done."""


class IsReplica(NotNow):
    """Its answers may be old, and it takes no writes."""


class Broken(Exception):
    """The connection broke. `sent`: the work may have reached the server."""

    def __init__(self, cause: BaseException, *, sent: bool) -> None:
        super().__init__(str(cause))
        self.sent = sent


CODES = re.compile(
    r"\b(MOVED|ASK|TRYAGAIN|CLUSTERDOWN|LOADING|MASTERDOWN|READONLY|NOREPLICAS|BUSY|UNBLOCKED|OOM|MISCONF"
    r"|NOSCRIPT|NOPERM|ACL failure|user executing the script can't|NOAUTH|WRONGPASS|WRONGTYPE)\b"
)
ELSEWHERE = {"MOVED", "ASK", "TRYAGAIN"}
TURNED_AWAY = ("LOADING ", "ERR max number of clients")
NOT_NOW = {"CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "NOREPLICAS", "BUSY", "UNBLOCKED"}


def understood(error: Exception) -> Exception:
    """A reply that is an error, as one of ours."""
    text = str(error)
    return Elsewhere(text) if _code(text) in ELSEWHERE else named(text)


def is_turned_away(error: Exception) -> bool:
    """Whether the server has looked at nothing that was sent to it."""
    return str(error).startswith(TURNED_AWAY)


def is_unknown_script(error: Exception) -> bool:
    return str(error).startswith("NOSCRIPT")


def _code(text: str) -> str:
    match = CODES.search(text)
    return match[1] if match else ""


def named(text: str) -> StoreError | NotNow:
    """What a script or a server complained of, by the code in its text."""
    code = _code(text)
    if code in NOT_NOW:
        return NotNow(text)
    kind, message = MESSAGES.get(code, (StoreError, UNKNOWN))
    return kind(message.format(text=text))


MESSAGES: dict[str, tuple[type[StoreError], str]] = {
    "OOM": (
        StoreFull,
        "Redis has reached its maxmemory; nothing was written. Raise maxmemory or purge old records, then try again.",
    ),
    "MISCONF": (
        StoreFull,
        "Redis cannot write to its disk and refuses writes; nothing was written. "
        "Free some space on the server, then try again.",
    ),
    "NOAUTH": (StoreError, "Redis refused the user or the password; correct them in the store's URL."),
    "WRONGPASS": (StoreError, "Redis refused the user or the password; correct them in the store's URL."),
    "NOPERM": (
        StoreError,
        "The Redis user may not do this ({text}); let it have ~twiceproof:* +@read +@write +@scripting +info "
        "+time +client|id +client|kill +cluster|slots +config|get.",
    ),
    "WRONGTYPE": (
        StoreError,
        "A key under twiceproof: holds something that twiceproof did not write; nothing was written. "
        "Use another database.",
    ),
}
MESSAGES["ACL failure"] = MESSAGES["user executing the script can't"] = MESSAGES["NOPERM"]  # as scripts say it
UNKNOWN = "Redis refused: {text}. This is a bug in twiceproof or in the server; please report it."
