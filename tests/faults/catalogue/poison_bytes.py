"""Poison over the network: bodies that are invalid or too large JSON, and heads that are not HTTP."""

from __future__ import annotations

import gzip
import pickle
import random
from collections.abc import Callable

from tests.faults.catalogue.poison import word

__all__ = ["BODIES", "HEADS"]

Dice = random.Random
BOMB = gzip.compress(b"[" + b" " * 20_000_000 + b"]", 9)

BODIES: dict[str, Callable[[Dice], bytes]] = {
    "NUL escaped": lambda dice: b'"a\\u0000%d"' % dice.randint(0, 9),
    "NUL as it is": lambda dice: b'"a\0b"',
    "half a surrogate pair": lambda dice: b'"\\ud8%02x"' % dice.randint(0, 255),
    "half a surrogate pair in UTF-8": lambda dice: b'"\xed\xa0%c"' % dice.randint(0x80, 0xBF),
    "not UTF-8": lambda dice: b'"' + dice.randbytes(8).replace(b'"', b"'") + b'\xff"',
    "NaN": lambda dice: dice.choice([b"NaN", b"Infinity", b"-Infinity", b"[nan]"]),
    "1e999": lambda dice: b"1e%d" % dice.randint(400, 9_999),
    "around 2^63": lambda dice: str(dice.choice([1, -1]) * 2**63 + dice.randint(-2, 2)).encode(),
    "beyond 2^64": lambda dice: str(2**64 + dice.randint(0, 9)).encode(),
    "5,000 digits": lambda dice: b"9" * dice.randint(5_000, 6_000),
    "10,000 deep": lambda dice: b"[" * 10_000 + b"]" * 10_000,
    "never closed": lambda dice: b'{"a":' * dice.randint(1, 2_000),
    "a name twice": lambda dice: b'{"a":1,"a":%d}' % dice.randint(2, 9),
    "names that fold into one": lambda dice: '{"caf\u00e9":1,"cafe\u0301":2}'.encode(),
    "900 kilobytes": lambda dice: b'"' + b"x" * 900_000 + b'"',
    "3 megabytes": lambda dice: b'"' + b"x" * 3_000_000 + b'"',
    "pickle": lambda dice: pickle.dumps({word(dice): 1}),
    "byte order mark": lambda dice: b"\xef\xbb\xbf1",
    "broken off": lambda dice: b'{"order": [1, 2, "' + word(dice).encode(),
    "more than one": lambda dice: b"{} {}",
    "ordinary": lambda dice: b'{"order": "%s"}' % word(dice).encode(),
}

POST = b"POST /hooks/post HTTP/1.1\r\nhost: x\r\n"
GET = b"GET / HTTP/1.1\r\nhost: x\r\n"

HEADS: dict[str, Callable[[Dice], bytes]] = {
    "no HTTP": lambda dice: dice.randbytes(200) + b"\r\n\r\n",
    "TLS": lambda dice: b"\x16\x03\x01\x02\x00" + dice.randbytes(100),
    "two lengths": lambda dice: POST + b"content-length: 2\r\ncontent-length: 9\r\n\r\n{}",
    "length below nothing": lambda dice: POST + b"content-length: -1\r\n\r\n",
    "length and chunks": lambda dice: POST + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "endless head": lambda dice: GET + b"x-a: " + b"a" * 70_000 + b"\r\n\r\n",
    "many heads": lambda dice: GET + b"a: b\r\n" * 500 + b"\r\n",
    "NUL in the path": lambda dice: b"GET /v1/claims/a/\0 HTTP/1.1\r\nhost: x\r\n\r\n",
    "broken chunks": lambda dice: POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n",
    "gone before the end": lambda dice: POST + b"content-length: 900\r\n\r\n{",
}
