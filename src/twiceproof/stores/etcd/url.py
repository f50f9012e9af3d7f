"""What an etcd URL says: the members, the prefix of all keys, who signs in, and how."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from ...errors import Misuse
from ..dynamodb.url import refuse_unknown

__all__ = ["EtcdUrl"]

PORT = 2379
FORM = "write etcd://host:2379,host:2379,host:2379/prefix, or etcds:// for TLS"


class EtcdUrl(Struct, frozen=True):
    """Never print `user` and `password`."""

    members: tuple[tuple[str, int], ...]
    prefix: str
    tls: bool
    ca: str | None = None
    user: str | None = None
    password: str = ""

    @classmethod
    def of(cls, url: str) -> EtcdUrl:
        parts = urlsplit(url)
        login, at, hosts = parts.netloc.rpartition("@")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        refuse_unknown(options, ("ca",))
        user, _, password = login.partition(":")
        members = tuple(_member(text) for text in hosts.split(",") if text)
        if not members:
            raise Misuse(f"The etcd URL names no member; {FORM}.")
        return cls(
            members,
            (parts.path.strip("/") or "twiceproof") + "/",
            parts.scheme == "etcds",
            options.get("ca"),
            unquote(user) if at else None,
            unquote(password),
        )

    @property
    def loopback(self) -> bool:
        return all(host in ("localhost", "127.0.0.1", "::1") for host, _ in self.members)


def _member(text: str) -> tuple[str, int]:
    found = re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9_.-]+)(?::(\d{1,5}))?", text)
    if found is None:  # its text may contain part of a password
        raise Misuse(f"The etcd URL cannot be read; {FORM}, with special characters in a password percent-encoded.")
    return found[1].strip("[]"), int(found[2] or PORT)
