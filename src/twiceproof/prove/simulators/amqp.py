"""AMQP 1.0 for the simulators: the types of part 1 of the standard, and frames with one performative each.

Only what a client of Azure Service Bus uses. Numbers are encoded by the class of the value: `int` is a long, and the
narrower types have classes of their own, because peers reject a field of another type than the standard's.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

__all__ = [
    "AMQP_HEADER",
    "SASL_HEADER",
    "AmqpArray",
    "Described",
    "Symbol",
    "Timestamp",
    "UByte",
    "UInt",
    "ULong",
    "UShort",
    "decoded",
    "encoded",
    "frame",
    "performative",
    "sections",
]

AMQP_HEADER, SASL_HEADER = b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00"


class Symbol(str):
    __slots__ = ()


class UByte(int):
    pass


class UShort(int):
    pass


class UInt(int):
    pass


class ULong(int):
    pass


class Timestamp(int):
    """Milliseconds since 1970."""


class AmqpArray(list[Symbol]):
    """An array of symbols; other arrays are not sent."""


class Described(Struct, frozen=True):
    """A value with a descriptor, which is a number, or a symbol."""

    code: Any
    value: Any


# -- encoding ------------------------------------------------------------------------------------

NUMBERS: dict[type, tuple[int, str]] = {
    UByte: (0x50, ">B"),
    UShort: (0x60, ">H"),
    UInt: (0x70, ">I"),
    ULong: (0x80, ">Q"),
    Timestamp: (0x83, ">q"),
    int: (0x81, ">q"),
    float: (0x82, ">d"),
}


def encoded(value: Any) -> bytes:
    if value is None:
        return b"\x40"
    if isinstance(value, bool):
        return b"\x41" if value else b"\x42"
    if isinstance(value, ULong) and value < 256:  # descriptors: some peers know them in this form alone
        return bytes([0x53, value])
    if type(value) in NUMBERS:
        code, form = NUMBERS[type(value)]
        return bytes([code]) + struct.pack(form, value)
    if isinstance(value, Described):
        return b"\x00" + encoded(value.code) + encoded(value.value)
    return _encoded_by_class(value)


def _encoded_by_class(value: Any) -> bytes:
    if isinstance(value, Symbol):
        return _sized(0xB3, value.encode())
    if isinstance(value, str):
        return _sized(0xB1, value.encode())
    if isinstance(value, bytes):
        return _sized(0xB0, value)
    if isinstance(value, uuid.UUID):
        return b"\x98" + value.bytes
    if isinstance(value, AmqpArray):
        elements = b"".join(_sized(0xB3, one.encode())[1:] for one in value)
        return _sized(0xF0, struct.pack(">I", len(value)) + b"\xb3" + elements)
    items = [part for pair in value.items() for part in pair] if isinstance(value, dict) else list(value)
    return _sized(0xD1 if isinstance(value, dict) else 0xD0, struct.pack(">I", len(items)) + _joined(items))


def _sized(code: int, data: bytes) -> bytes:
    return bytes([code]) + struct.pack(">I", len(data)) + data


def _joined(items: Sequence[Any]) -> bytes:
    return b"".join(encoded(item) for item in items)


# -- decoding ------------------------------------------------------------------------------------

FIXED: dict[int, tuple[str, Callable[[Any], Any]]] = {
    0x50: (">B", UByte),
    0x51: (">b", int),
    0x52: (">B", UInt),
    0x53: (">B", ULong),
    0x54: (">b", int),
    0x55: (">b", int),
    0x56: (">B", bool),
    0x60: (">H", UShort),
    0x61: (">h", int),
    0x70: (">I", UInt),
    0x71: (">i", int),
    0x72: (">f", float),
    0x80: (">Q", ULong),
    0x81: (">q", int),
    0x82: (">d", float),
    0x83: (">q", Timestamp),
    0x98: (">16s", lambda data: uuid.UUID(bytes=data)),
}
SINGLE: dict[int, Callable[[], Any]] = {
    0x40: lambda: None,
    0x41: lambda: True,
    0x42: lambda: False,
    0x43: lambda: UInt(0),
    0x44: lambda: ULong(0),
    0x45: list,
}
TEXTS = {0xA0: 1, 0xA1: 1, 0xA3: 1, 0xB0: 4, 0xB1: 4, 0xB3: 4}  # by the width of their size
COMPOUND = {0xC0: 1, 0xC1: 1, 0xD0: 4, 0xD1: 4, 0xE0: 1, 0xF0: 4}


def decoded(data: bytes, at: int = 0) -> tuple[Any, int]:
    """The value that begins there, and where the next one does."""
    code, at = data[at], at + 1
    if code == 0:
        descriptor, at = decoded(data, at)
        value, at = decoded(data, at)
        return Described(descriptor, value), at
    return _decoded_as(code, data, at)


def _decoded_as(code: int, data: bytes, at: int) -> tuple[Any, int]:
    if code in SINGLE:
        return SINGLE[code](), at
    if code in FIXED:
        form, kind = FIXED[code]
        return kind(struct.unpack_from(form, data, at)[0]), at + struct.calcsize(form)
    width = TEXTS.get(code) or COMPOUND[code]
    size, at = _number(data, at, width), at + width
    if code in TEXTS:
        return _text(code, data[at : at + size]), at + size
    return _compound(code, data, at, width), at + size


def _compound(code: int, data: bytes, at: int, width: int) -> Any:
    count, at = _number(data, at, width), at + width
    items: list[Any] = []
    if code in (0xE0, 0xF0):  # an array: one constructor for all
        code, at = data[at], at + 1
    else:
        items, code, count = _items(data, at, count), code & 0xF, 0
    for _ in range(count):
        item, at = _decoded_as(code, data, at)
        items.append(item)
    return dict(zip(items[::2], items[1::2], strict=True)) if code == 1 else items


def _items(data: bytes, at: int, count: int) -> list[Any]:
    items = []
    for _ in range(count):
        item, at = decoded(data, at)
        items.append(item)
    return items


def _text(code: int, data: bytes) -> Any:
    kind = code & 0xF
    if kind == 0:
        return bytes(data)
    return data.decode() if kind == 1 else Symbol(data.decode())


def _number(data: bytes, at: int, width: int) -> int:
    return int.from_bytes(data[at : at + width], "big")


# -- frames and messages -------------------------------------------------------------------------


def frame(code: int, fields: Sequence[Any], *, channel: int = 0, kind: int = 0, payload: bytes = b"") -> bytes:
    """A frame: `kind` is 1 for SASL. Fields at the end that are None may be left out."""
    body = encoded(Described(ULong(code), list(fields))) + payload
    return struct.pack(">IBBH", len(body) + 8, 2, kind, channel) + body


def performative(body: bytes, length: int = 14) -> tuple[int, list[Any], bytes]:
    """The code, the fields, filled up with None, and the payload behind them."""
    described, at = decoded(body)
    fields = [*described.value, *[None] * (length - len(described.value))]
    return int(described.code), fields, body[at:]


def sections(payload: bytes) -> list[tuple[int, Any, bytes]]:
    """The sections of a message: code, value, and the bytes as they came."""
    found, at = [], 0
    while at < len(payload):
        described, end = decoded(payload, at)
        found.append((int(described.code), described.value, payload[at:end]))
        at = end
    return found
