"""Sends one delivery to a server, and brings back what it answers."""

from __future__ import annotations

import http.client
import re
import time
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from ..doors.envelope import Envelope
from ..errors import Misuse
from .failures import NoAnswer

__all__ = ["Answer", "knock"]

PATIENCE = 30.0  # seconds; a late answer is worth more than none
LONGEST = 4_000
UNSENT = re.compile("[^!-~]")  # what may not stand in a request line as it is
KEPT_ASIDE = ("poison", "mismatch")


class Said(Struct, frozen=True):
    state: str = ""


class Answer(Struct, frozen=True):
    status: int
    seconds: float
    text: str

    @property
    def welcome(self) -> bool:
        return 200 <= self.status < 300 and not self.kept_aside

    @property
    def kept_aside(self) -> bool:
        """Acknowledged, so that it does not come for days; but nothing was started."""
        try:
            return msgspec.json.decode(self.text, type=Said).state in KEPT_ASIDE
        except msgspec.MsgspecError:
            return False

    def shape(self) -> dict[str, Any]:
        return {"status": self.status, "seconds": round(self.seconds, 6), "answer": self.text}


def knock(url: str, sample: Envelope, deadline: float) -> Answer:
    connection, target = _door(url, sample.query, max(PATIENCE, deadline))
    begun = time.monotonic()
    try:
        connection.request("POST", target, sample.body, sample.headers)
        response = connection.getresponse()
        body = response.read(LONGEST)
    except (OSError, http.client.HTTPException) as error:
        why = type(error).__name__ if not str(error) else str(error)
        raise NoAnswer(f"No server answered at {url} ({why}); start one with: twiceproof serve MODULE:APP") from None
    finally:
        connection.close()
    return Answer(response.status, time.monotonic() - begun, body.decode("utf-8", "replace"))


def _door(url: str, query: str, patience: float) -> tuple[http.client.HTTPConnection, str]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")  # as the connection will; a name that cannot be asked for is no fault of the server
    except ValueError:
        host, port = "", None
    if not host or parts.scheme not in ("http", "https") or UNSENT.search(f"{parts.path}?{parts.query}"):
        raise Misuse(
            f"{url!r} is no URL to send to; write it like http://127.0.0.1:8000/hooks/stripe, other letters "
            "percent-encoded."
        )
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    asked = "&".join(part for part in (parts.query, query) if part)
    return kind(host, port, timeout=patience), (parts.path or "/") + (f"?{asked}" if asked else "")
