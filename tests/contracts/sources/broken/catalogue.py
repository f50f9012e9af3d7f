"""The broken sources by name, with the subjects of the contract that may catch them."""

from __future__ import annotations

from typing import NamedTuple

from twiceproof.inbound.source import Source

BROKEN: list[Broken] = []


class Broken(NamedTuple):
    name: str
    subjects: tuple[str, ...]
    make: type[Source]


def breaks(*subjects):
    """The subjects that catch it; it must pass all others."""

    def declare(kind):
        BROKEN.append(Broken(kind.__name__, subjects, kind))
        return kind

    return declare
