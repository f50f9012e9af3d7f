"""How a step may be repeated: `repeat=`, what a probe answers, and `retry=`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Literal, Protocol

from msgspec import Struct
from msgspec.structs import force_setattr

from ..clock import jitter
from ..errors import Misuse
from ..keys.duration import seconds

__all__ = [
    "DEFAULT_RETRY",
    "NEVER",
    "NO_RETRY",
    "SAFE",
    "TRANSACTION",
    "Absent",
    "Declared",
    "Happened",
    "Look",
    "Repeat",
    "Repeatable",
    "Retry",
    "Unknown",
    "as_retry",
    "check",
    "declare",
    "keyed",
    "look_of",
]


SHOWN = 20  # ids in a message


class Happened(Struct, frozen=True):
    """The effect happened. `receipt` is what the step would have returned."""

    receipt: Any = None


class Absent(Struct, frozen=True):
    """The effect certainly did not happen."""


class Unknown(Struct, frozen=True):
    """The other system cannot tell. `found` are the ids of the records, where several were found for one effect: the
    run stops for review, and a finding lists them.

    `failed`: it could not be asked, because it is down for example. It is asked again, by the step's retry policy.
    """

    why: str = ""
    found: tuple[str, ...] = ()
    failed: bool = False

    @classmethod
    def several(cls, ids: Iterable[object], where: str = "") -> Unknown:
        """Return Unknown for several records, of which it is not known which one the effect made."""
        known = tuple(map(str, ids))
        place = f" in {where}" if where else ""
        return cls(f"{len(known)} found{place}: {', '.join(known[:SHOWN])}{'…' if len(known) > SHOWN else ''}", known)


Look = Happened | Absent | Unknown


def look_of(answer: object) -> Look:
    """Convert a probe's return value. It may be the class or an instance; anything else is Unknown, so that None is not
    mistaken for Absent.
    """
    if isinstance(answer, type) and issubclass(answer, Happened | Absent | Unknown):
        answer = answer()
    if isinstance(answer, Happened | Absent | Unknown):
        return answer
    return Unknown(f"the probe returned {type(answer).__name__}, not Happened(…), Absent or Unknown")


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
        """Whether a start must be recorded before the step acts, to tell a crash from a step that never started."""
        return self.kind in ("check", "never") or self.looks_later

    @property
    def looks_later(self) -> bool:
        """Whether the destination can be asked after the provider's key has stopped helping."""
        return self.kind == "keyed" and self.probe is not None


class Repeatable(Protocol):
    """What `repeat=` also takes: an object with a declaration of its own, such as `provider("stripe")`."""

    @property
    def declared(self) -> Declared: ...


SAFE, NEVER, TRANSACTION = Declared("safe"), Declared("never"), Declared("transaction")

Repeat = Literal["safe", "keyed", "never"] | Declared | Repeatable


def check(probe: Callable[..., Any], *, settling: str | float | timedelta = DEFAULT_SETTLING) -> Declared:
    """Ask the destination first. The probe takes any of the step's arguments by name, and `effect_key`.

    It answers `Happened(receipt)`, `Absent` or `Unknown`. Absent counts only after the step's time-out and `settling`
    have passed: the first request may still be on its way.
    """
    if not callable(probe):
        raise Misuse(f"check({probe!r}) needs a function that looks for the effect; pass one.")
    return Declared("check", probe, seconds(settling, name="settling", positive=False))


def keyed(
    *,
    window: str | float | timedelta = DEFAULT_WINDOW,
    look: Callable[..., Any] | None = None,
    settling: str | float | timedelta = DEFAULT_SETTLING,
) -> Declared:
    """The provider deduplicates by the key we send (`app.effect_key()`), and remembers it for `window`.

    `look` is a probe as for `check`: it asks the destination when the key no longer helps, because its window is over,
    the retries are used up, or the provider gives the same error again. `settling` as for `check`.
    """
    if look is not None and not callable(look):
        raise Misuse(f"keyed(look={look!r}) needs a function that looks for the effect; pass one.")
    settled = seconds(settling, name="settling", positive=False)
    return Declared("keyed", look, settled, seconds(window, name="window"))


_WORDS = {"safe": SAFE, "keyed": Declared("keyed"), "never": NEVER}


def declare(repeat: object) -> Declared:
    if isinstance(repeat, Declared):
        return repeat
    if isinstance(repeat, str) and repeat in _WORDS:
        return _WORDS[repeat]
    known = getattr(repeat, "declared", None)
    if isinstance(known, Declared):
        return known
    hint = "; write @app.transaction instead" if repeat == "transaction" else ""
    raise Misuse(
        f'repeat={repeat!r} is not valid; use "safe", "keyed", "never", keyed(window=…) or check(probe){hint}.'
    )


ON_EXAMPLE = "on={RateLimited: Retry(attempts=50)}"
DOUBLINGS = 1_000  # no float can hold 2 to the power of 1024: the 1025th start would fail


class Retry(Struct, frozen=True):
    """A retry policy. `attempts` counts starts, killed ones too. `within` is counted from the first start.

    Pauses begin with `first` and double up to `most`.

    `never_on` are exceptions that no retry cures: the step is not tried again after one of them. `on` has policies for
    failures of some classes: `on={RateLimited: Retry(attempts=50, first="30s")}`. The class nearest to the error's own
    decides; each policy is complete in itself, and counts all starts, whatever they failed with.
    """

    attempts: int = 8
    first: Any = 1.0  # durations as people write them; seconds once made
    most: Any = "10m"
    within: Any = "2d"
    never_on: Any = ()  # an exception class, or several
    on: Any = {}  # exception classes, and the policy for each

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise Misuse(f"attempts={self.attempts!r} is not a number of starts; give 1 or more.")
        for name in ("first", "most", "within"):
            span = seconds(getattr(self, name), name=name, positive=False)
            force_setattr(self, name, span)
        if self.first > self.most:
            raise Misuse(
                f"first={self.first:g} s is more than most={self.most:g} s and would be cut short; give a longer most=."
            )
        force_setattr(self, "never_on", self.never_on if isinstance(self.never_on, tuple) else (self.never_on,))
        _refuse_other_classes("never_on", self.never_on, "never_on=(CardDeclined,)")
        self._read_on()

    def _read_on(self) -> None:
        if not isinstance(self.on, Mapping):
            raise Misuse(f"on={self.on!r} is no mapping; write {ON_EXAMPLE}.")
        force_setattr(self, "on", dict(self.on))
        _refuse_other_classes("on", self.on, ON_EXAMPLE)
        for kind, policy in self.on.items():
            if not isinstance(policy, Retry):
                raise Misuse(f"on={{{kind.__name__}: {policy!r}}} has no policy; write {ON_EXAMPLE}.")
            if policy.on or policy.never_on:
                raise Misuse(
                    f"The policy for {kind.__name__} has its own on= or never_on=; write them in the outer one."
                )
            if issubclass(kind, self.never_on):
                raise Misuse(f"{kind.__name__} is in on= and, by its class, in never_on=; take it out of one of them.")

    def decided_by(self, error: BaseException) -> str:
        """Return the name of the class in `on` that decides after an error; "": none does.

        Of a group, the error whose policy allows the fewest starts decides.
        """
        kind = next((kind for kind in type(error).__mro__ if kind in self.on), None)
        if kind is None and self.on and isinstance(error, BaseExceptionGroup):
            return min(map(self.decided_by, error.exceptions), key=lambda name: self.policy_of(name).attempts)
        return "" if kind is None else _full_name(kind)

    def policy_of(self, name: str) -> Retry:
        """Return the policy of a class in `on`, by its recorded name; this one if there is none.

        The module counts only where two classes share a name: a script's is `__main__`, and the worker's another.
        """
        known = {_full_name(kind): policy for kind, policy in self.on.items()}
        alike = (policy for other, policy in known.items() if other.rpartition(":")[2] == name.rpartition(":")[2])
        return known.get(name) or next(alike, self)

    def gives_up_on(self, error: BaseException) -> bool:
        """Whether the error is one of `never_on`, or a group that contains one."""
        if isinstance(error, self.never_on):
            return True
        return isinstance(error, BaseExceptionGroup) and any(self.gives_up_on(one) for one in error.exceptions)

    def delay(self, starts: int, spent: float, asked: float | None, roll: Callable[[], float]) -> float | None:
        """Seconds until the next start; None: no further start. `asked` is what the server requested (Retry-After)."""
        if starts >= self.attempts:
            return None
        doubled = self.first * 2.0 ** min(starts - 1, DOUBLINGS)
        span: float = max(jitter(min(doubled, self.most), roll), asked or 0.0)
        return None if spent + span > self.within else span

    def may_start(self, starts: int, spent: float) -> bool:
        """Whether a start without a delay is allowed: the one after a crash."""
        return bool(starts <= self.attempts and spent <= self.within)


def _refuse_other_classes(name: str, kinds: Iterable[Any], example: str) -> None:
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise Misuse(f"{name}={kind!r} is no exception class; write {example}.")


def _full_name(kind: type[BaseException]) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


DEFAULT_RETRY = Retry()
NO_RETRY = Retry(attempts=1)


def as_retry(given: Retry | None) -> Retry:
    """Return a retry policy. Anything else is refused at declaration: it would otherwise be noticed only when a step
    fails.
    """
    if given is not None and not isinstance(given, Retry):
        raise Misuse(f"retry={given!r} is no policy; write retry=Retry(attempts=3).")
    return DEFAULT_RETRY if given is None else given
