"""HTTP/1.1 as the stand-in reads and writes it: enough for clients that are in earnest, with bounds."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import msgspec
from msgspec import Struct

from .http_answers import Answer

__all__ = ["Request", "read_request", "written"]

LONGEST_BODY = 32 * 1024 * 1024
MOST_HEADERS = 200


class Request(Struct, frozen=True):
    """`host` is as the client wrote it, without the port that every client of a scheme leaves out."""

    method: str
    host: str
    target: str
    headers: dict[str, str]
    body: bytes


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | int | None:
    """None when the client has no more; the first byte when it does not speak HTTP."""
    line = await _line(reader)
    if isinstance(line, int) or not line:
        return line or None
    method, target, version = line.split(" ")
    if not version.startswith("HTTP/1."):
        return None
    headers: dict[str, str] = {}
    while (field := await reader.readline()).strip():
        name, _, value = field.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
        if len(headers) > MOST_HEADERS:
            return None
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    host = headers.get("host", "").lower().removesuffix(":80").removesuffix(":443")
    return Request(method.upper(), host, _path(target), headers, await _body(reader, headers))


async def _line(reader: asyncio.StreamReader) -> str | int:
    first = await reader.read(1)
    if not first or first[0] < ord("A") or first[0] > ord("z"):
        return first[0] if first else ""
    return (first + await reader.readline()).decode("latin-1").strip()


def _path(target: str) -> str:
    """A client that goes by way of a proxy writes the whole URL."""
    if target.startswith("http://"):
        return "/" + target.removeprefix("http://").partition("/")[2]
    return target


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return await _chunks(reader)
    size = int(headers.get("content-length") or 0)
    return await reader.readexactly(_bounded(size)) if size else b""


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while True:
        size = int((await reader.readline()).split(b";")[0], 16)
        if size == 0:
            while (await reader.readline()).strip():
                pass
            return body
        body += await reader.readexactly(size)
        _bounded(len(body))
        await reader.readline()


def _bounded(size: int) -> int:
    if not 0 <= size <= LONGEST_BODY:
        raise ValueError("the body is too long for a stand-in")
    return size


def written(answer: Answer, *, bodiless: bool) -> bytes:
    text = answer.body if isinstance(answer.body, str) else msgspec.json.encode(answer.body).decode()
    body = b"" if answer.body is None or answer.status in (204, 304) else text.encode()
    kind = "text/plain; charset=utf-8" if isinstance(answer.body, str) else "application/json"
    fields = {"content-type": kind, **{name.lower(): value for name, value in answer.headers.items()}}
    fields["content-length"] = str(len(body))
    lines = [f"HTTP/1.1 {answer.status} {_phrase(answer.status)}", *(f"{name}: {fields[name]}" for name in fields)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (b"" if bodiless else body)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Answer"
