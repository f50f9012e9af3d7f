"""Looks at an operation's first keys for signs that they change on every retry, and warns once per sign."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ..errors import Misuse
from .maker import KeyMaker
from .stability import Suspect, suspects, text_sign, warn_unstable

__all__ = ["Watch"]

_LOOKS = 20  # a mistake shows in the first calls; after them a look costs one comparison
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
        sign = self._remake_sign(arguments, key) or text_sign(key, now)
        return [Suspect("key", sign)] if sign else []

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


def _dotted(name: str) -> str:
    return name.replace("[", ".").replace("]", "")
