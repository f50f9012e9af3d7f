"""The demo's outside world: a carrier's book of parcels, written by the workers and unknown to the ledger."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from msgspec import Struct

__all__ = ["Parcel", "World"]


class Parcel(Struct, frozen=True):
    """One effect. The number is drawn when it happens: only the one who did it, and the book, know it."""

    order: int
    number: str


class World:
    """An append-only file. Each line is one effect, on the disk before `ship` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def ship(self, order: int) -> Parcel:
        parcel = Parcel(order, os.urandom(6).hex())
        # One write in append mode lands whole: of two processes, neither tears the other's line.
        book = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(book, msgspec.json.encode(parcel) + b"\n")
            os.fsync(book)
        finally:
            os.close(book)
        return parcel

    def parcels(self) -> list[Parcel]:
        lines = self.path.read_bytes().splitlines() if self.path.exists() else []
        return [msgspec.json.decode(line, type=Parcel) for line in lines]

    def find(self, order: int) -> Parcel | None:
        """Did it happen? What a person would ask the carrier."""
        return next((parcel for parcel in self.parcels() if parcel.order == order), None)
