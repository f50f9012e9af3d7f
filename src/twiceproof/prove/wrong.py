"""Wrong declarations: which step acted again, what it had declared, and what to write instead. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from ..claims.once import Once
from ..flows.repeat import Kind
from ..flows.step import Step
from .scenes.outcome import ACTS, Outcome
from .scenes.verdict import Verdict
from .worlds.http_answers import REPEATABLE

__all__ = ["Wrong", "declarations", "wrong_declarations"]

AGAIN: dict[Kind, tuple[str, str]] = {
    "safe": (
        'is declared "safe", and is not: done again, it happens again',
        'repeat="keyed" with app.effect_key() where the destination knows keys, repeat=check(probe) where it can be '
        'asked, and only where it can do neither repeat="never" (a person is asked)',
    ),
    "keyed": (
        'is declared "keyed", and the destination did not know the second request for the first',
        "send app.effect_key() unchanged, and nothing drawn per attempt; if the destination does not honour keys: "
        "repeat=check(probe)",
    ),
    "check": (
        "has a probe that says Absent of what has happened",
        "a probe that looks for what the step itself left there, such as app.effect_key(); where it cannot be sure: "
        "Unknown",
    ),
    "transaction": (
        "is declared a transaction, and its effect is not in it",
        "write with the connection that the step is given, and do what lies elsewhere in a step of its own",
    ),
    "never": (
        "may not be repeated, and what it does happened more often",
        "look for a second place that does the same: another step, another flow, the function's body",
    ),
}
LIED = (
    "has a probe that says Happened of what has not",
    "a probe that returns Happened only with what it found at the destination, and otherwise Absent or Unknown",
)
OTHER_BODY = (
    'is declared "safe", and sent another body when it was done again',
    "send the same body each time: take ids and times from the event, or from app.uuid() and app.now() in the flow",
)
OVERWRITES = (
    'is declared "safe", and done again late it overwrites what was written after it',
    "send the version that it replaces, which the destination compares (If-Match), or repeat=check(probe) with a probe "
    "that knows the later write",
)
BODY = ("what happened again is not in any step", "put it into a step of its own, and declare how it may be repeated")


class Wrong(Struct, frozen=True):
    """`step` is empty where it was the flow's own body."""

    step: str
    declared: str
    found: str
    instead: str
    effects: tuple[str, ...]
    scenes: tuple[str, ...]


def declarations(acting: Iterable[Step | Once]) -> dict[str, Kind]:
    found: dict[str, Kind] = {}
    for one in acting:
        if isinstance(one, Once):
            found[one.policy.operation] = one.policy.repeat
            continue
        found.update({step.name: step.plan.repeat.kind for step in (one, one.undo) if step is not None})
    return found


def wrong_declarations(
    kinds: Mapping[str, Kind], bad: Sequence[tuple[Verdict, Outcome, Outcome]]
) -> tuple[Wrong, ...]:  # fmt: skip
    """From what was played: each bad verdict with its play, and the play that it was compared with."""
    found: dict[tuple[str, str], tuple[str, list[str], list[str]]] = {}
    for verdict, played, beside in bad:
        for step, (says, instead), effect in _blamed(kinds, verdict, played, beside):
            _, effects, scenes = found.setdefault((step, says), (instead, [], []))
            effects.append(effect)
            scenes.append(verdict.scene)
    return tuple(
        Wrong(step, kinds.get(step, ""), says, instead, _once(effects), _once(scenes))
        for (step, says), (instead, effects, scenes) in found.items()
    )


Blame = tuple[str, tuple[str, str], str]


def _blamed(kinds: Mapping[str, Kind], verdict: Verdict, played: Outcome, beside: Outcome) -> Iterable[Blame]:
    if verdict.word == "twice":
        for effect in verdict.extra:
            step = _last_to(effect, played)
            kind = kinds.get(step)
            yield step, _said(kind, effect, played, beside) if kind else BODY, effect
    for effect in verdict.missing if verdict.word in ("lost", "failed") else ():
        step = _last_to(effect, beside)
        if kinds.get(step) == "check" and not _last_to(effect, played):
            yield step, LIED, effect


def _said(kind: Kind, effect: str, played: Outcome, beside: Outcome) -> tuple[str, str]:
    """A PUT may be repeated as it is: what is wrong is that it was another one, or came too late."""
    if kind != "safe" or not effect.startswith(REPEATABLE):
        return AGAIN[kind]
    if effect not in beside.seen and any(_asked(other) == _asked(effect) for other in beside.seen):
        return OTHER_BODY
    there = {other for beat in played.beats for other in beat.world if _place(other) == _place(effect)}
    return OVERWRITES if len(there) > 1 else AGAIN[kind]


def _asked(effect: str) -> str:
    """METHOD host/path, without what tells bodies apart."""
    return effect.partition(" #")[0]


def _place(effect: str) -> str:
    return _asked(effect).partition(" ")[2]


def _last_to(effect: str, outcome: Outcome) -> str:
    """The step that did it, or did it again; empty if none did."""
    acted = [beat for beat in outcome.beats if beat.what.endswith(ACTS) and beat.world.get(effect, 0) > 0]
    return acted[-1].what.removesuffix(ACTS) if acted else ""


def _once(names: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
