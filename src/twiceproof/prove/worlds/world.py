"""A world: something outside that can be looked at, and put back as it was before each play."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from .counted import counted

__all__ = ["CallableWorld", "Losing", "World", "Worlds", "losing"]


@runtime_checkable
class World(Protocol):
    """`reset` is called in the parent before each play, `look` wherever the play is."""

    def reset(self) -> None: ...

    def look(self) -> dict[str, int]:
        """What there is, counted."""


@runtime_checkable
class Losing(Protocol):
    """A world that is spoken to, and may keep its answers to itself."""

    def exchanges(self) -> list[str]:
        """What was asked of it in the last play, in order."""

    def lose(self, number: int) -> None:
        """The answer to the so-manieth of the next play is lost, after it was carried out."""


class CallableWorld:
    """A function of the user's. What it looks at in memory is as it was in each play, because each has its own copy."""

    def __init__(self, look: Callable[[], Any], reset: Callable[[], Any] | None = None) -> None:
        self._look = look
        self._reset = reset

    def reset(self) -> None:
        if self._reset is not None:
            self._reset()

    def look(self) -> dict[str, int]:
        return counted(self._look())


class Worlds:
    """Several, as one."""

    def __init__(self, worlds: Sequence[World]) -> None:
        self._worlds = worlds

    def __iter__(self) -> Iterator[World]:
        return iter(self._worlds)

    def reset(self) -> None:
        for world in self._worlds:
            world.reset()

    def look(self) -> dict[str, int]:
        """Added up: what two of them call by one name would otherwise hide in one what happened in the other."""
        seen: Counter[str] = Counter()
        for world in self._worlds:
            seen.update(world.look())
        return dict(seen)


def losing(world: World) -> list[Losing]:
    """Those of a world's parts that can lose an answer."""
    return [part for part in (world if isinstance(world, Worlds) else [world]) if isinstance(part, Losing)]
