"""Bodies that no two readers understand alike, made of a good one."""

from __future__ import annotations

__all__ = ["NUMBERS", "spoilt", "with_number"]

NUMBERS = (2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**30)

PARTS = {
    "NaN": b"NaN",
    "infinity": b"-Infinity",
    "a number without an end": b"1e999",
    "half a surrogate pair": rb'"\ud800"',
    "the other half first": rb'"\udc00\ud800"',
    "a NUL in a text": b'"a\0b"',
    "a newline in a text": b'"a\nb"',
    "invalid UTF-8": b'"\xff\xfe"',
    "a surrogate in UTF-8": b'"\xed\xa0\x80"',
    "an overlong letter": b'"\xc0\xaf"',
    "too deep": b"[" * 500 + b"]" * 500,
    "deeper than the stack": b"[" * 20_000 + b"]" * 20_000,
    "a name twice": b'{"a":1,"a":2}',
    "a name twice, spelled in two ways": rb'{"a":1,"\u0061":2}',
    "a single quote": b"'x'",
    "a comment": b"1/*x*/",
    "a comma too many": b"[1,]",
    "a zero in front": b"01",
}
WHOLE = {
    "nothing": b"",
    "white space": b" \n",
    "a text": b'"text"',
    "a number": b"17",
    "null": b"null",
    "true": b"true",
    "no JSON": b"<xml/>",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"id":"1"}'.encode("utf-16"),
    "a pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.",
    "NUL bytes": b"\0" * 16,
    "half": b'{"id":',
    "two": b"{}{}",
}


def spoilt(body: bytes) -> dict[str, bytes]:
    """The good body with one bad part in it, each; and bodies that are bad as a whole."""
    return {name: _with_part(body, part) for name, part in PARTS.items()} | WHOLE


def with_number(body: bytes, number: int) -> bytes:
    return _with_part(body, str(number).encode())


def _with_part(body: bytes, part: bytes) -> bytes:
    """Into its last object, the innermost one: `{…{…,"spoilt":PART}}`. What is around it may have its own shape."""
    inner = len(body.rstrip(b"}] \n"))
    at = body.find(b"}", inner)
    comma = b"" if body[:at].endswith(b"{") else b","
    return body[:at] + comma + b'"spoilt":' + part + body[at:]
