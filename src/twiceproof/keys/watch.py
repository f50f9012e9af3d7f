"""Looks at an operation's first keys for signs that they change on every retry, and warns once per sign."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from ..errors import Misuse
from .field import Field
from .maker import KeyMaker
from .stability import KEY, Suspect, suspects, text_sign, warn_unstable

__all__ = ["KeyWatch", "Watch"]

_LOOKS = 20  # a mistake shows in the first calls; after them a look costs one comparison
_LONGEST = 10_000  # letters of an argument that are looked at
_REMAKES = 3  # of these, calls whose key function is asked a second time


class Watch:
    """One per operation. `stable` names fields (`order.id`) or whole arguments (`order`) known to stay."""

    def __init__(self, operation: str, maker: KeyMaker, stable: Collection[str] = (), looks: int = _LOOKS) -> None:
        if isinstance(stable, str):  # stable="id" would declare i and d
            raise Misuse(f'stable={stable!r} is one text, not a list of names; write stable=("{stable}",)')
        self.operation = operation
        self._maker = maker
        self._told = {_dotted(name) for name in stable}
        self._left = looks
        self.is_on = looks > 0  # while it is not, there is no need to look
        self._remakes = _REMAKES

    def look(self, arguments: Mapping[str, Any], key: str, now: float, stacklevel: int = 2) -> None:
        """Call it after each `make`, with the store's or the injected clock's time. It never refuses."""
        if not self.is_on:
            return
        self._left -= 1
        self.is_on = self._left > 0
        found = [suspect for suspect in self._suspects(arguments, key, now) if self._is_new(suspect)]
        # Remembered first: where warnings are errors, the next call must not stop at the same one.
        self._told.update(suspect.path for suspect in found)
        warn_unstable(self.operation, found, stacklevel + 1)

    def _suspects(self, arguments: Mapping[str, Any], key: str, now: float) -> list[Suspect]:
        if not self._maker.is_function:
            return suspects(arguments, self._maker.fields, now)
        if sign := self._remake_sign(arguments, key):
            return [Suspect(KEY, sign)]
        if KEY in self._told:  # all of what the function makes is declared stable
            return []
        return self._taken(arguments, key, now) or self._made(arguments, key, now)

    def _taken(self, arguments: Mapping[str, Any], key: str, now: float) -> list[Suspect]:
        """Arguments that stand in the key as they are. What a function makes of others (a window) may well stay."""
        fields = [Field(name, name, ()) for name in self._maker.takes if _stands_in(key, arguments.get(name))]
        return suspects(arguments, fields, now)

    def _made(self, arguments: Mapping[str, Any], key: str, now: float) -> list[Suspect]:
        """A sign in the key itself, with the argument that brought it, where one shows the same."""
        sign = text_sign(key, now)
        if sign is None:
            return []
        bringing = (name for name in self._maker.takes if text_sign(_shown(arguments.get(name)), now) == sign)
        return [Suspect(next(bringing, KEY), sign)]

    def _remake_sign(self, arguments: Mapping[str, Any], key: str) -> str | None:
        """A key function that draws a time or a random number gives itself away when asked twice."""
        if self._remakes <= 0:
            return None
        self._remakes -= 1
        try:
            same = self._maker.make(arguments) == key
        except Exception:  # noqa: BLE001  the key was made; a check must not stop the call
            same = False
        return None if same else "came out different when made twice from the same arguments"

    def _is_new(self, suspect: Suspect) -> bool:
        return suspect.path not in self._told and suspect.path.partition(".")[0] not in self._told


class KeyWatch:
    """For keys that come as text, with nothing known of what they are made of: the first of each operation."""

    def __init__(self) -> None:
        self._left: dict[str, int] = {}

    def look(self, operation: str, key: str, now: float, *, say: str, stacklevel: int = 2) -> None:
        left = self._left.get(operation, _LOOKS)
        if left <= 0:
            return
        sign = text_sign(key, now)
        self._left[operation] = 0 if sign else left - 1
        if sign:
            warn_unstable(operation, [Suspect(KEY, sign)], stacklevel + 1, say=say)


def _stands_in(key: str, value: Any) -> bool:
    """As a word of its own: the attempt 1 does not stand in order 1001."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float, Decimal, UUID, datetime)):
        return False
    words = (str(value), value.isoformat()) if isinstance(value, datetime) else (str(value),)
    return any(re.search(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])", key) for word in words if word)


def _shown(value: Any) -> str:
    try:
        return str(value)[:_LONGEST]
    except Exception:  # noqa: BLE001  the key was made; a check must not stop the call
        return ""


def _dotted(name: str) -> str:
    return name.replace("[", ".").replace("]", "")
