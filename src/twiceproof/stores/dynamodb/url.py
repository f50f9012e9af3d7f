"""What a DynamoDB URL says: the region, the table, and the store's options."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

from ...errors import Misuse

__all__ = ["LANES", "MOST_LANES", "DynamoDbUrl", "read_lanes", "refuse_login", "refuse_unknown"]

LANES = 16
MOST_LANES = 1024
OPTIONS = ("endpoint", "lanes")
FORM = "write dynamodb://REGION/TABLE, such as dynamodb://eu-central-1/twiceproof; without a region boto3's own is used"


class DynamoDbUrl(Struct, frozen=True):
    region: str | None
    table: str
    lanes: int
    endpoint: str | None

    @classmethod
    def of(cls, url: str) -> DynamoDbUrl:
        try:
            parts = urlsplit(url)
            options = dict(parse_qsl(parts.query, keep_blank_values=True))
        except ValueError:
            raise Misuse(f"The DynamoDB URL cannot be read; {FORM}.") from None
        refuse_login(parts.username, parts.password, "boto3 finds credentials: environment, profile, role")
        table = parts.path.strip("/")
        if not re.fullmatch(r"[A-Za-z0-9_.-]{3,255}", table):
            raise Misuse(f"The DynamoDB URL names no table; {FORM}.")
        refuse_unknown(options, OPTIONS)
        endpoint = options.get("endpoint")
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            raise Misuse("endpoint= in the store's URL is a URL itself, such as http://localhost:8000; write it so.")
        return cls(parts.hostname, table, read_lanes(options.get("lanes", str(LANES))), endpoint)


def refuse_login(user: str | None, password: str | None, instead: str) -> None:
    """Refuse a user or password in the URL. The message does not repeat it: it may be a secret."""
    if user is not None or password is not None:
        raise Misuse(f"The store's URL holds a name or a secret before the @; leave it out, because {instead}.")


def refuse_unknown(options: dict[str, str], legal: tuple[str, ...]) -> None:
    """Refuse unknown options: one that is accepted but has no effect is worse than an error."""
    for name in options:
        if name not in legal:
            raise Misuse(f"In the store's URL, {name}= is not known; this store has: {', '.join(legal)}.")


def read_lanes(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_LANES:
        raise Misuse(f"lanes={text} is out of range; give 1 to {MOST_LANES}.")
    return int(text)
