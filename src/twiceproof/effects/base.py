"""Effect: a call to another system, described as data. `repeat.py` has how it may be repeated, and the answers of a
look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar, runtime_checkable
from urllib.parse import quote

from ..claims.error_classification import retry_after
from ..clock import system_clock
from ..errors import Misuse, NotDone
from ..keys.key import is_blank
from .repeat import Absent, Declared, Happened, Look, Unknown, look_of

__all__ = [
    "Absent",
    "BrokenDescription",
    "Effect",
    "Happened",
    "Look",
    "Unknown",
    "first_attempt_at",
    "header_text",
    "look_of",
    "outgoing_headers",
    "preparing",
    "refuse_blank_key",
    "require",
]

R_co = TypeVar("R_co", covariant=True)

# What an effect sends along so that its target's logs lead back here: the correlation id and `traceparent`, by the
# names of their HTTP headers. Set around `perform` and `look`.
outgoing_headers: ContextVar[Mapping[str, str]] = ContextVar("twiceproof_outgoing_headers", default={})  # noqa: B039

# When the step's first attempt began, in seconds since 1970; None outside of a run, and where no start is recorded.
first_attempt_at: ContextVar[float | None] = ContextVar("twiceproof_first_attempt_at", default=None)


@runtime_checkable
class Effect(Protocol[R_co]):
    """A call to another system, described as data: creating one does nothing.

    How it may be repeated follows from the description, before the first byte is sent. `perform` and `look` block; for
    a flow that awaits, the engine calls them on a thread. `effect_key` is the same for every attempt at one step.

    An effect that continues although it found several records instead of one may have a method `found_several(result)`
    that returns their ids: the engine records a finding about them. One whose `can_look` is false is not
    looked for by a reconciliation.
    """

    @property
    def name(self) -> str:
        """The default name of its step in the ledger: `POST api.example.com/invoices`."""

    @property
    def repeat(self) -> Declared:
        """How it may be repeated; with `probe=self.look` where the destination can be asked."""

    @property
    def result_type(self) -> Any:
        """The type of what `perform` returns; `Any` for plain JSON."""

    def describe(self) -> dict[str, Any]:
        """Return the request as JSON values, without secrets. A run whose replay describes another effect under the
        same name stops for review.
        """

    def perform(self, effect_key: str) -> R_co:
        """Do it, once: no retries of its own. Raises `NotDone` if it certainly did not happen, `OutcomeUnknown` if it
        may have."""

    def look(self, effect_key: str) -> Look:
        """Ask the destination whether it happened. Never writes; a failure is `Unknown`."""


class BrokenDescription(NotDone, Misuse):
    """What an effect is made of is missing or does not fit, such as a secret that is not set: nothing was sent.

    It is a mistake in the program or its surroundings: completed steps are not undone for it.
    """


@contextmanager
def preparing(name: str) -> Iterator[None]:
    """Around what is done before the first byte is sent: whatever fails in it, nothing was done."""
    try:
        yield
    except NotDone:
        raise
    except (Misuse, TypeError, ValueError) as error:
        raise BrokenDescription(f"{name} was not sent: {error}", final=True) from error
    except Exception as error:  # such as the request for a token
        told = f"{name} was not sent: {type(error).__name__}: {error}"
        raise NotDone(told, retry_after=retry_after(error, system_clock.now())) from error


_PLAIN = "".join(map(chr, range(0x20, 0x7F)))


def header_text(text: str) -> str:
    """Percent-encode what is not ASCII: clients refuse it in a header, or send bytes that servers read differently."""
    return text if text.isascii() and text.isprintable() else quote(text, safe=_PLAIN)


@lru_cache(16)
def require(package: str, extra: str, what: str) -> None:
    """Refuse an effect whose package is missing, already when it is created: an error while it is performed would be
    retried.
    """
    if find_spec(package) is None:
        raise Misuse(f"{what} needs {package}, which is not installed; run: pip install 'twiceproof[{extra}]'")


def refuse_blank_key(key: Mapping[str, Any]) -> None:
    """Refuse a row's key that comes from an empty field: all rows without one would be the same row.

    An empty text is accepted beside other columns, where it can be a value of its own. What is only invisible is not.
    """
    blank = {name: value for name, value in key.items() if isinstance(value, str) and is_blank(value)}
    for name, value in blank.items():
        if value or len(blank) == len(key):
            raise Misuse(
                f"The key's {name} is {'blank' if value else 'empty'}: every row without one would be the same row; "
                "give it a value, or create no row."
            )
