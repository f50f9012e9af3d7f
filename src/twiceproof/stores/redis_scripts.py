"""The Lua scripts of the Redis store. A script is atomic on its server, and the only thing that is."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files

from .redis_lanes import Lane

__all__ = ["SERVER_TIME", "Script", "Scripts"]

SERVER_TIME = "local time = redis.call('TIME') local micros = time[1] * 1000000 + time[2]"


class Script:
    """A script, the name the server knows it by, and how a call of it begins on the wire."""

    def __init__(self, name: str, now_lua: str) -> None:
        self.name = name
        self.text = _written_out(_source("prelude") + _source(name)).replace("@NOW@", now_lua).encode()
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()
        self._heads: dict[int, bytes] = {}

    def call(self, lane: Lane, arguments: Sequence[bytes]) -> bytes:
        head = self._heads.get(lane.number)
        if head is None:
            head = self._heads[lane.number] = _wire((b"EVALSHA", self.sha, b"2", *lane.keys))
        return b"*%d\r\n%b%b" % (5 + len(arguments), head, _wire(arguments))

    def call_whole(self, lane: Lane, arguments: Sequence[bytes]) -> bytes:
        """For a server that does not know the script."""
        head = _wire((b"EVAL", self.text, b"2", *lane.keys))
        return b"*%d\r\n%b%b" % (5 + len(arguments), head, _wire(arguments))


def _wire(parts: Iterable[bytes]) -> bytes:
    return b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


class Scripts:
    """All of them, with one clock: Lua that puts the store's time, in whole microseconds, into `micros`."""

    def __init__(self, now_lua: str = SERVER_TIME) -> None:
        self.commit = Script("commit", now_lua)
        self.put = Script("put", now_lua)
        self.fetch = Script("fetch", now_lua)
        self.scan = Script("scan", now_lua)
        self.peek = Script("peek", now_lua)
        self.take = Script("take", now_lua)
        self.epoch = Script("epoch", now_lua)


def _source(name: str) -> str:
    return files(__package__).joinpath("lua", f"{name}.lua").read_text("utf-8")


def _written_out(text: str) -> str:
    """Constants as plain numbers: as locals, every function would catch them again in every call."""
    names: dict[str, str] = {}

    def note(line: re.Match[str]) -> str:
        names.update(zip(line[1].split(", "), line[2].split(", "), strict=True))
        return ""

    text = re.sub(r"^local ([A-Z_, ]+) = ([0-9, ]+)$", note, text, flags=re.MULTILINE)
    return re.sub(rf"\b({'|'.join(names)})\b", lambda name: names[name[1]], text)
