"""Which declaration is wrong, by what the scenarios showed; and whether the clean run can be compared with at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from msgspec import Struct

from ..effects.providers import Provider, provider_of
from ..effects.repeat import Kind
from ..errors import Misuse
from ..flows.transaction import NEEDS_SQL
from .scenarios.scenario import ACTS, ScenarioOutcome, Verdict, gained
from .target import ProofTarget
from .worlds.http import REPEATABLE

__all__ = [
    "WrongDeclaration",
    "declarations",
    "refuse_clean_run",
    "refuse_elsewhere",
    "refuse_other",
    "wrong_declarations",
]


WAITS = "say what it waits for, with --callback name=FILE or --approve name (callbacks=, approve= in a test)"


def refuse_clean_run(
    clean: ScenarioOutcome, before: dict[str, int], target: ProofTarget, tables: Sequence[str] = ()
) -> None:
    """Refuse a clean run that fails, or that changes nothing observable: every scenario would look the same."""
    joins = not tables and any(event.kind == "transaction" for event in clean.events)
    if joins or NEEDS_SQL in f"{clean.why} {clean.error}":
        raise Misuse(
            "prove runs scenarios on ledgers of its own, and @app.transaction writes your tables beside the ledger: "
            "name these tables, so that each scenario has copies of them, with --ledger-table NAME (ledger_tables= in "
            "a test), on SQLite or --store postgresql://…"
        )
    if clean.error or clean.state not in ("done", "review", "failed"):
        raise Misuse(
            f"One clean run must come to an end first, and this one is {clean.state or 'broken'}: "
            f"{clean.error or WAITS}{_missed(clean)}"
        )
    if clean.state != target.ends:
        raise Misuse(
            f"One clean run must end {target.ends} first, and this one ended {clean.state}: {clean.why}. "
            f"{_move(clean)}; if it is to end so: --ends {clean.state} (ends= in a test).{_missed(clean)}"
        )
    _refuse_unmet(clean, target)
    if not gained(before, clean.seen) and not target.may_be_idle:
        raise Misuse(
            "One clean run changed nothing that is looked at, so nothing would be proved; say where its effects are: "
            "--files DIR, --calls module:function, --http HOST, --provider NAME, --smtp HOST, --broker or "
            "--table URL#name (world= in a test)."
        )


def refuse_other(clean: ScenarioOutcome, again: ScenarioOutcome) -> None:
    """Refuse effects that differ each time: they cannot be told from an effect that happened twice."""
    other = gained(clean.seen, again.seen)
    if other:
        raise Misuse(
            f"Two clean runs do different things to the outside ({next(iter(other))}), so nothing could be compared; "
            "take times and ids from the event, or let world= in a test leave out what changes each time."
        )


BROKER_PORTS = ("5671", "5672", "4222", "9092", "9093")
SEND = "app.send(topic, body) in the flow, which the relay publishes under one key"
OPTION_BY_PORT = dict.fromkeys(("25", "465", "587"), "--smtp") | dict.fromkeys(("143", "993"), "--imap")


def refuse_elsewhere(whose: str, places: Sequence[str]) -> None:
    """Refuse connections to hosts without a stand-in.

    The guard blocked them, so what the flow would do there is unknown.
    """
    if not places:
        return
    first = places[0]
    if first.startswith("unix:"):
        move = "Look at what is behind it with world= or --table"
    elif first.rpartition(":")[2] in BROKER_PORTS:
        move = f"It looks like a broker: {SEND}, and look at it with --broker"
    else:
        host, _, port = first.rpartition(":")
        others = "--smtp for mail, --imap for its sent folder, --table for a database"
        move = f"Name it with {OPTION_BY_PORT.get(port, '--http')} {host or first} ({others})"
    real = first.removeprefix("unix:")
    raise Misuse(
        f"{whose} reached for {', '.join(places)}, where no stand-in is, and was refused. {move}; if every scenario "
        f"may reach it for real: --real {real} (real= in a test)."
    )


def _missed(clean: ScenarioOutcome) -> str:
    """Blocked connections that may have caused the failure."""
    if not clean.cut:
        return ""
    return (
        " A scenario uses no connection that was opened before it, and no name server "
        f"({', '.join(clean.cut)}): connect in the step, or name the host with --real (real= in a test)."
    )


def _refuse_unmet(clean: ScenarioOutcome, target: ProofTarget) -> None:
    met = {one.name for one in clean.awaited}
    unmet = [name for name in (*target.callbacks, *target.approve, *target.reject) if name not in met]
    if unmet:
        raise Misuse(
            f"One clean run waited for {', '.join(sorted(met)) or 'nothing'}, and never for {', '.join(unmet)}; leave "
            "it out, or give an event that leads there."
        )


def _move(clean: ScenarioOutcome) -> str:
    return WAITS[:1].upper() + WAITS[1:] if "WaitTimedOut" in clean.why else "Correct the flow, or what it is given"


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
FORGETS = "forgotten-"  # begins the names of scenarios in which a provider has forgotten its keys
FORGOTTEN = (
    'is declared "keyed" for longer than its provider remembers keys',
    'http.post(url, …, provider="NAME") without repeat=, or repeat=provider("NAME"), so that its row decides; after '
    "that the destination is asked, with look=, or a person",
)
BODY = ("what happened again is not in any step", "put it into a step of its own, and declare how it may be repeated")


class WrongDeclaration(Struct, frozen=True):
    """A wrong declaration. `step` is empty for the flow's own body."""

    step: str
    declared: str
    found: str
    instead: str
    effects: tuple[str, ...]
    scenarios: tuple[str, ...]


def declarations(outcomes: Iterable[ScenarioOutcome]) -> dict[str, Kind]:
    """How the steps that acted may be repeated, each by its name. Effects say so only when they are called."""
    acted = (event for outcome in outcomes for event in outcome.events if event.what.endswith(ACTS) and event.kind)
    return {event.what.removesuffix(ACTS): cast("Kind", event.kind) for event in acted}


def wrong_declarations(
    kinds: Mapping[str, Kind], bad: Sequence[tuple[Verdict, ScenarioOutcome, ScenarioOutcome]]
) -> tuple[WrongDeclaration, ...]:
    """Find wrong declarations: each bad verdict with its scenario, and the scenario it was compared with."""
    found: dict[tuple[str, str], tuple[str, list[str], list[str]]] = {}
    for verdict, outcome, beside in bad:
        for step, (says, instead), effect in _blamed(kinds, verdict, outcome, beside):
            _, effects, scenarios = found.setdefault((step, says), (instead, [], []))
            effects.append(effect)
            scenarios.append(verdict.scenario)
    return tuple(
        WrongDeclaration(step, kinds.get(step, ""), says, instead, _once(effects), _once(scenarios))
        for (step, says), (instead, effects, scenarios) in found.items()
    )


Blame = tuple[str, tuple[str, str], str]


def _blamed(
    kinds: Mapping[str, Kind], verdict: Verdict, outcome: ScenarioOutcome, beside: ScenarioOutcome
) -> Iterable[Blame]:
    if verdict.word == "twice":
        for effect in verdict.extra:
            step = _last_to(effect, outcome)
            kind = kinds.get(step)
            if kind == "keyed" and verdict.scenario.startswith(FORGETS):
                yield step, _naming_row(FORGOTTEN, effect), effect
                continue
            yield step, _advice(kind, effect, outcome, beside) if kind else _naming_block(BODY, effect), effect
    for effect in verdict.missing if verdict.word in ("lost", "failed") else ():
        step = _last_to(effect, beside)
        if kinds.get(step) == "check" and not _last_to(effect, outcome):
            yield step, LIED, effect


def _advice(kind: Kind, effect: str, outcome: ScenarioOutcome, beside: ScenarioOutcome) -> tuple[str, str]:
    """A PUT may be repeated as it is: wrong is only that its body changed, or that it came too late."""
    if kind == "keyed":
        return _naming_stand_in(AGAIN[kind], effect)
    if kind != "safe" or not effect.startswith(REPEATABLE):
        return _naming_block(AGAIN[kind], effect) if kind == "safe" else AGAIN[kind]
    if effect not in beside.seen and any(_request_of(other) == _request_of(effect) for other in beside.seen):
        return OTHER_BODY
    there = {other for event in outcome.events for other in event.world if _place(other) == _place(effect)}
    return OVERWRITES if len(there) > 1 else AGAIN[kind]


def _naming_block(advice: tuple[str, str], effect: str) -> tuple[str, str]:
    """The advice, with the ready-made effect that does the same, where there is one."""
    says, instead = advice
    if effect.startswith("message "):
        return says, f'{SEND}; or, by hand, publish under key=app.effect_key() and declare repeat="keyed"'
    block = _block_for(effect)
    return (says, f"{block} under @app.effect; or, without it: {instead}") if block else advice


def _block_for(effect: str) -> str:
    if effect.startswith("mail to "):
        return "mail.send(message, via=…), with look=mail.imap(…) where the account keeps copies of what it sends,"
    if not (method := _creates_by(effect)):
        return ""
    if row := _provider_in(effect):
        return f'http.{method}(url, …, provider="{row.id}")'
    return f"http.{method}(url, …, look=http.find(…)), or http.put to an id of your own,"


def _naming_stand_in(advice: tuple[str, str], effect: str) -> tuple[str, str]:
    """The advice, and how a stand-in is told to honour keys."""
    if not _creates_by(effect):
        return advice
    row = _provider_in(effect)
    option = f"--provider {row.id}" if row else "--http-keys (honours_keys=True in a test)"
    return advice[0], f"{advice[1]}; if it does, let its stand-in do so: {option}"


def _naming_row(advice: tuple[str, str], effect: str) -> tuple[str, str]:
    row = _provider_in(effect)
    return advice[0], advice[1] if row is None else advice[1].replace("NAME", row.id)


def _creates_by(effect: str) -> str:
    """`post` or `patch`, if the effect is such a request."""
    method, _, place = _request_of(effect).partition(" ")
    return method.lower() if method in ("POST", "PATCH") and "/" in place else ""


def _provider_in(effect: str) -> Provider | None:
    method, _, place = _request_of(effect).partition(" ")
    row = provider_of(f"https://{place}", method)
    return row if row is not None and row.kind == "keyed" else None


def _request_of(effect: str) -> str:
    """METHOD host/path, without the body's digest."""
    return effect.partition(" #")[0]


def _place(effect: str) -> str:
    return _request_of(effect).partition(" ")[2]


def _last_to(effect: str, outcome: ScenarioOutcome) -> str:
    """The step that caused the effect, or repeated it; empty if none did."""
    acted = [event for event in outcome.events if event.what.endswith(ACTS) and event.world.get(effect, 0) > 0]
    return acted[-1].what.removesuffix(ACTS) if acted else ""


def _once(names: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
