"""Numbered SQL files per dialect. A release only ever adds files; a file once released never changes."""

from __future__ import annotations

from importlib.resources import files

from msgspec import Struct

__all__ = ["Migration", "migrations"]


class Migration(Struct, frozen=True):
    number: int
    name: str
    sql: str


def migrations(dialect: str) -> list[Migration]:
    """The dialect's migrations in order: `0001_records.sql` is number 1."""
    found = [
        Migration(int(file.name[:4]), file.name, file.read_text("utf-8"))
        for file in files(__package__).joinpath(dialect).iterdir()
        if file.name.endswith(".sql")
    ]
    return sorted(found, key=lambda migration: migration.number)
