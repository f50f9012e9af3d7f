"""The verdict: what a play's world says beside that of one clean run. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from ...claims.claim import DONE, FAILED, REVIEW
from .outcome import Outcome
from .scene import Scene

__all__ = ["Verdict", "Word", "gained", "is_missed", "judge"]

Word = Literal["same", "parked", "failed", "twice", "lost", "differs", "stuck", "broken", "missed"]
GOOD: tuple[Word, ...] = ("same", "parked", "missed")


class Verdict(Struct, frozen=True):
    """`extra` happened more often than in one clean run, `missing` less often; `state` is what the run ended in."""

    scene: str
    says: str
    word: Word
    state: str
    extra: dict[str, int] = {}
    missing: dict[str, int] = {}
    detail: str = ""
    expected: int = 0  # effects of the play that it is compared with
    seen: int = 0

    @property
    def good(self) -> bool:
        return self.word in GOOD


def judge(scene: Scene, outcome: Outcome, clean: Outcome, before: Mapping[str, int] | None = None) -> Verdict:
    """Nothing may happen twice. What is missing must be done by a person's word, or the run is not done."""
    seen, wanted = (Counter(gained(before or {}, one.seen)) for one in (outcome, clean))
    arrived = Counter(outcome.arrivals) - Counter(clean.arrivals)  # what the killed were told, nobody knows
    extra, missing = dict(seen - wanted + arrived), dict(wanted - seen)
    word, detail = _word(outcome, clean, extra, missing)
    if scene.order and word in ("twice", "lost"):
        word, detail = "differs", "another outside than when the events come in the order given"
    if word == "same" and is_missed(scene, outcome):
        word, detail = "missed", "its fault was never reached: this flow's threads do not take turns alike"
    counts = wanted.total(), (seen + arrived).total()
    return Verdict(scene.name, scene.says, word, outcome.state, extra, missing, detail, *counts)


def gained(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """What there is more of than before anything was played, and what is gone."""
    more, gone = Counter(now) - Counter(before), Counter(before) - Counter(now)
    return {**more, **{f"gone: {what}": count for what, count in gone.items()}}


def is_missed(scene: Scene, outcome: Outcome) -> bool:
    return outcome.fired < sum(map(len, scene.scripts)) + bool(scene.loses) + bool(scene.arrives)


def _word(outcome: Outcome, clean: Outcome, extra: dict[str, int], missing: dict[str, int]) -> tuple[Word, str]:
    if outcome.error:
        return "broken", outcome.error
    if extra:
        return "twice", "something happened that does not happen in one clean run"
    if outcome.state == REVIEW:
        return "parked", "a person decides"
    if outcome.state != clean.state:
        return _other_end(outcome, clean)
    if missing:
        return "lost", "the run has ended, and something did not happen"
    return ("same", "") if outcome.result == clean.result else ("differs", "another result than one clean run's")


def _other_end(outcome: Outcome, clean: Outcome) -> tuple[Word, str]:
    if outcome.state in (DONE, FAILED):
        return "failed", f"it ended {outcome.state}, and one clean run ends {clean.state}"
    return "stuck", "it never came to an end"
