"""A letter's body: in the letter itself, or, where it is large, in pieces beside it."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence

from ..claims.shelf import Shelf
from ..claims.shelving import load, placed
from ..claims.states import EXPIRE
from ..drive import Operation
from ..errors import ResultNotKept
from ..records import Address, Insert
from ..stores.base import Store

__all__ = ["INLINE", "fits", "gather", "inline", "pieces", "places"]

KIND = "resource"
INLINE = 256 * 1024
PIECE = 6 * 1024 * 1024  # bytes: written as base64 they also fit into the store, should the shelf fail


def inline(body: bytes) -> str:
    return b64encode(body).decode()


def fits(store: Store, size: int) -> bool:
    """Letter and pieces land together, or a letter could be without its body."""
    return size <= INLINE or size <= PIECE * (store.batch_limit - 1)


def pieces(shelf: Shelf | None, space: str, body: bytes, keep: float) -> Operation[Sequence[Insert]]:
    """To be written with the letter; none for a body that lies in it."""
    if len(body) <= INLINE:
        return ()
    cut = [body[start : start + PIECE] for start in range(0, len(body), PIECE)]
    put = zip(places(space, len(cut)), cut, strict=True)
    return (yield from placed(shelf, [Insert(at, inline(part), queue=EXPIRE, due_in=keep) for at, part in put]))


def places(space: str, count: int) -> list[Address]:
    return [Address(space, KIND, f"body-{number}") for number in range(count)]


def gather(store: Store, space: str, count: int) -> Operation[bytes]:
    """The pieces in one again."""
    body = b""
    for at in places(space, count):
        record = (yield from store.read(at)).record
        if record is None:
            raise ResultNotKept("The body of this letter is no longer kept; ask its sender to deliver it again.")
        with (yield from load(record)) as file:
            body += b64decode(file.read())
    return body
