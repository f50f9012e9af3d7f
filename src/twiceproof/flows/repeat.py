"""How a step may be repeated: what a user writes into `repeat=`, checked once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

from msgspec import Struct

from ..errors import Misuse
from ..keys.duration import seconds

__all__ = ["NEVER", "SAFE", "TRANSACTION", "Declared", "Repeat", "check", "declare", "keyed"]

Kind = Literal["safe", "keyed", "check", "transaction", "never"]

DEFAULT_WINDOW = 24 * 3_600.0
DEFAULT_SETTLING = 5.0


class Declared(Struct, frozen=True):
    """A step's declaration. `probe` asks the destination; `window` is how long a provider remembers our key."""

    kind: Kind
    probe: Callable[..., Any] | None = None
    settling: float = DEFAULT_SETTLING
    window: float = DEFAULT_WINDOW

    @property
    def writes_intent(self) -> bool:
        """Whether a start must be on record before it acts: a crash is told from a step never begun."""
        return self.kind in ("check", "never")


SAFE, NEVER, TRANSACTION = Declared("safe"), Declared("never"), Declared("transaction")

Repeat = Literal["safe", "keyed", "never"] | Declared


def check(probe: Callable[..., Any], *, settling: str | float | timedelta = DEFAULT_SETTLING) -> Declared:
    """Ask the destination first. The probe takes what it names of the step's arguments, and `effect_key`.

    It answers `Happened(receipt)`, `Absent` or `Unknown`. Absent counts only when the step's time-out and
    `settling` have gone by: the first request may still be on its way.
    """
    if not callable(probe):
        raise Misuse(f"check({probe!r}) needs a function that looks for the effect; pass one.")
    return Declared("check", probe, seconds(settling, name="settling", positive=False))


def keyed(*, window: str | float | timedelta = DEFAULT_WINDOW) -> Declared:
    """The provider dedupes on the key we send (`app.effect_key()`), and remembers it for `window`."""
    return Declared("keyed", window=seconds(window, name="window"))


_WORDS = {"safe": SAFE, "keyed": Declared("keyed"), "never": NEVER}


def declare(repeat: object) -> Declared:
    if isinstance(repeat, Declared):
        return repeat
    if isinstance(repeat, str) and repeat in _WORDS:
        return _WORDS[repeat]
    hint = "; write @app.transaction instead" if repeat == "transaction" else ""
    raise Misuse(
        f'repeat={repeat!r} means nothing here; say "safe", "keyed", "never", keyed(window=…) or check(probe){hint}.'
    )
