"""Effect: a call to the outside, described as data; and the possible results of asking whether it happened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from ..errors import Misuse
from .repeat import Declared

__all__ = ["Absent", "Effect", "Happened", "Look", "Unknown", "look_of", "outgoing_headers", "require"]

R_co = TypeVar("R_co", covariant=True)

# What an effect sends along so that its target's logs lead back here: the correlation id and `traceparent`, by the
# names of their HTTP headers. Set around `perform` and `look`.
outgoing_headers: ContextVar[Mapping[str, str]] = ContextVar("twiceproof_outgoing_headers", default={})  # noqa: B039

SHOWN = 20  # ids in a message


class Happened(Struct, frozen=True):
    """The effect happened. `receipt` is what the step would have returned."""

    receipt: Any = None


class Absent(Struct, frozen=True):
    """The effect certainly did not happen."""


class Unknown(Struct, frozen=True):
    """The other system cannot tell. `found` are the ids of the records, where several were found for one effect: the
    run stops for review, and a finding lists them."""

    why: str = ""
    found: tuple[str, ...] = ()

    @classmethod
    def several(cls, ids: Iterable[object], where: str = "") -> Unknown:
        """Several records were found, and which of them is the effect's cannot be told."""
        known = tuple(map(str, ids))
        place = f" in {where}" if where else ""
        return cls(f"{len(known)} found{place}: {', '.join(known[:SHOWN])}{'…' if len(known) > SHOWN else ''}", known)


Look = Happened | Absent | Unknown


@runtime_checkable
class Effect(Protocol[R_co]):
    """A call to the outside, described as data: making one does nothing.

    What it is decides how it may be repeated, before the first byte is sent. `perform` and `look` block; the engine
    calls them on a thread for an awaiting flow. `effect_key` is the same for every attempt at one step.
    """

    @property
    def name(self) -> str:
        """The name of its step in the ledger, where none is given: `POST api.example.com/invoices`."""

    @property
    def repeat(self) -> Declared:
        """How it may be repeated; with `probe=self.look` where the destination can be asked."""

    @property
    def result_type(self) -> Any:
        """The type of what `perform` returns; `Any` for plain JSON."""

    def describe(self) -> dict[str, Any]:
        """Return what is asked for, as JSON values and without secrets. A run whose replay describes another effect
        under the same name stops for review."""

    def perform(self, effect_key: str) -> R_co:
        """Do it, once: no retries of its own. Raises `NotDone` if it certainly did not happen, `OutcomeUnknown` if it
        may have."""

    def look(self, effect_key: str) -> Look:
        """Ask the destination whether it happened. Never writes; a failure is `Unknown`."""


def look_of(answer: object) -> Look:
    """Convert a probe's return value. It may be the class or an instance; anything else is Unknown, so that None is not
    mistaken for Absent.
    """
    if isinstance(answer, type) and issubclass(answer, Happened | Absent | Unknown):
        answer = answer()
    if isinstance(answer, Happened | Absent | Unknown):
        return answer
    return Unknown(f"the probe returned {type(answer).__name__}, not Happened(…), Absent or Unknown")


@lru_cache(16)
def require(package: str, extra: str, what: str) -> None:
    """Refuse an effect whose package is missing when it is made: while it is performed, that would be retried."""
    if find_spec(package) is None:
        raise Misuse(f"{what} needs {package}, which is not installed; run: pip install 'twiceproof[{extra}]'")
