"""A bug that is put into the product on purpose, and the fault that must find it."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct


class Plant(Struct, frozen=True):
    """`into` changes this process's copy of the product; nothing undoes it."""

    what: str  # for people: what the product does now
    fault: str
    into: Callable[[], None]
    share: float = 0.013  # of the full run: less than in the short run, so that the short run certainly finds it
    stores: tuple[str, ...] = ("sqlite",)
