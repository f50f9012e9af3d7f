"""The protocol of worlds, several worlds as one, counted calls, and a user's own function as a world."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from ...errors import Misuse
from ...flows.step import Step

__all__ = [
    "CallableWorld",
    "CountedCalls",
    "ForgetsKeys",
    "LosesAnswers",
    "World",
    "Worlds",
    "counted",
    "forgetting",
    "losing",
    "unanswered",
]


class CountedCalls:
    """`module:function`, wrapped with a counter. In each scenario's own memory, so nothing needs to be restored."""

    def __init__(self, names: list[str]) -> None:
        self._seen: Counter[str] = Counter()
        for name in names:
            self._count(name)

    def reset(self) -> None: ...

    def look(self) -> dict[str, int]:
        return dict(self._seen)

    def _count(self, name: str) -> None:
        module_name, _, attribute = name.partition(":")
        try:
            owner: Any = import_module(module_name)
            *path, last = attribute.split(".")
            for part in path:
                owner = getattr(owner, part)
            function: Callable[..., Any] = getattr(owner, last)
        except (ImportError, AttributeError, ValueError):
            raise Misuse(f"There is no {name!r} to count the calls of; write it as module:function.") from None

        if isinstance(step := getattr(function, "step", None), Step):  # a replay calls it, and the ledger answers
            owner, last, function = step, "function", step.function

        @functools.wraps(function)
        def counting(*args: Any, **kwargs: Any) -> Any:
            self._seen[f"{name}{_shown(args, kwargs)}"] += 1
            return function(*args, **kwargs)

        setattr(owner, last, counting)


def _shown(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    given = [repr(value) for value in args] + [f"{name}={value!r}" for name, value in kwargs.items()]
    return f"({', '.join(given)})"[:200]


def counted(value: Any) -> dict[str, int]:
    """A number counts itself, a mapping of numbers is counts already, another collection is counted item by item."""
    if isinstance(value, Mapping):
        return _of_mapping(value)
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return dict(Counter(item if isinstance(item, str) else repr(item) for item in value))
    if isinstance(value, int) and not isinstance(value, bool):
        return {"count": value}
    return {} if value is None else {repr(value): 1}


def _of_mapping(value: Mapping[Any, Any]) -> dict[str, int]:
    if all(isinstance(count, int) and not isinstance(count, bool) for count in value.values()):
        return {str(name): count for name, count in value.items()}
    return {f"{name}: {item!r}": 1 for name, item in value.items()}


@runtime_checkable
class World(Protocol):
    """`reset` is called in the parent before each scenario, `look` in the scenario's process."""

    def reset(self) -> None: ...

    def look(self) -> dict[str, int]:
        """What there is, counted."""


@runtime_checkable
class LosesAnswers(Protocol):
    """A world with requests and answers, whose answers can be lost."""

    def exchanges(self) -> list[str]:
        """Requests of the last scenario, in order."""

    def lose(self, number: int) -> None:
        """Lose the answer to the n-th request of the next scenario, after it was carried out."""


@runtime_checkable
class ForgetsKeys(LosesAnswers, Protocol):
    """A world of a provider, which remembers keys for some time, and may repeat an error that it once answered."""

    @property
    def window(self) -> float:
        """For how many seconds it remembers a key; 0: it knows none, or never forgets."""

    def set_time(self, wall: float) -> None:
        """Set its clock: the scenario's time has moved."""

    def repeats_errors_to(self, asked: str) -> bool:
        """Whether an error that answers this request is repeated for the same key."""

    def err(self, number: int) -> None:
        """Carry out the n-th request of the next scenario, and answer it with an error that is repeated."""


class CallableWorld:
    """A user's function. What it reads from memory is the scenario's own copy."""

    def __init__(self, look: Callable[[], Any], reset: Callable[[], Any] | None = None) -> None:
        self._look = look
        self._reset = reset

    def reset(self) -> None:
        if self._reset is not None:
            self._reset()

    def look(self) -> dict[str, int]:
        return counted(self._look())


class Worlds:
    """Several worlds as one."""

    def __init__(self, worlds: Sequence[World]) -> None:
        self._worlds = worlds

    def __iter__(self) -> Iterator[World]:
        return iter(self._worlds)

    def reset(self) -> None:
        for world in self._worlds:
            world.reset()

    def look(self) -> dict[str, int]:
        """Added up, so that equal names in two worlds do not hide each other."""
        seen: Counter[str] = Counter()
        for world in self._worlds:
            seen.update(world.look())
        return dict(seen)


def losing(world: World) -> list[LosesAnswers]:
    """The parts of a world that can lose an answer."""
    return [part for part in _parts(world) if isinstance(part, LosesAnswers)]


def forgetting(world: World) -> list[ForgetsKeys]:
    """The parts of a world that remember keys."""
    return [part for part in _parts(world) if isinstance(part, ForgetsKeys)]


@runtime_checkable
class PreparedAnswers(Protocol):
    """A world that answers reads only as it was told to."""

    def unanswered(self) -> list[str]:
        """Reads of the last scenario that found nothing because no answer to them was given."""


def unanswered(world: World) -> list[str]:
    return [asked for part in _parts(world) if isinstance(part, PreparedAnswers) for asked in part.unanswered()]


def _parts(world: World) -> Iterable[World]:
    return world if isinstance(world, Worlds) else [world]
