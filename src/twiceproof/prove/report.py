"""The report: data, text and JUnit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from xml.etree.ElementTree import Element, SubElement, tostring

from msgspec import Struct

from .diagnosis import WrongDeclaration
from .scenarios.scenario import TimelineEvent, Verdict

__all__ = [
    "ProofReport",
    "all_rows",
    "bad_rows",
    "closing_line",
    "group_rows",
    "junit",
    "more_line",
    "timeline",
    "unanswered_lines",
    "wrong_lines",
]


class ProofReport(Struct, frozen=True):
    """`planned` counts the known scenarios, `verdicts` those that ran: a budget may end it early."""

    flow: str
    key: str
    store: str
    planned: int
    verdicts: tuple[Verdict, ...]
    expected: dict[str, int]  # what one clean run does to the outside
    unobserved: tuple[str, ...] = ()  # steps that acted and changed nothing observable
    wrong: tuple[WrongDeclaration, ...] = ()  # declarations contradicted by what ran
    worst: tuple[TimelineEvent, ...] = ()  # the worst case, event by event
    worst_scenario: str = ""
    clocks: tuple[str, ...] = ()  # calls in the key function that no scenario changes: a later delivery has another key
    guard: str = "kernel"  # what enforced the network guard: "python" covers only Python's sockets and psycopg
    compares_result: bool = True  # not where two clean runs return different results, such as ids
    state: str = ""  # of one clean run
    result: str = ""  # of one clean run, as JSON
    unanswered: tuple[str, ...] = ()  # reads for which a stand-in had no answer, so that they found nothing

    @property
    def bad(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if not verdict.good]

    @property
    def good(self) -> bool:
        return bool(self.verdicts) and not self.bad

    @property
    def complete(self) -> bool:
        return len(self.verdicts) == self.planned


def junit(report: ProofReport) -> str:
    suite = Element(
        "testsuite",
        name=f"twiceproof prove {report.flow}",
        tests=str(len(report.verdicts)),
        failures=str(len(report.bad)),
    )
    for verdict in report.verdicts:
        case = SubElement(suite, "testcase", classname=report.flow, name=verdict.scenario)
        if not verdict.good:
            failure = SubElement(case, "failure", type=verdict.word, message=f"{verdict.says}: {verdict.detail}")
            failure.text = f"more than once: {verdict.extra}, missing: {verdict.missing}"
    return tostring(suite, encoding="unicode")


RECOVERY = "killed, and again in the recovery"
GROUPS = (
    ("refused-", "a step refused for good; killed while the others were undone"),
    ("kill-write", "killed before and after every ledger write"),
    ("kill-effect", "killed before every step, and between its effect and its record"),
    ("answer-lost-", "every request to the outside carried out, and its answer lost"),
    ("lost-", "the answer of every step lost"),
    ("error-again-", "every request to a provider carried out, and answered with an error that it repeats"),
    ("forgotten-", "killed between effect and record, and taken up when providers have forgotten keys"),
    ("order-", "the events in every order, beside the order given"),
    ("paused-", "paused past the lease at every step, then woken"),
)


def group_rows(report: ProofReport) -> list[tuple[str, str, str]]:
    """Groups of scenarios: how many ran, and how they ended."""
    groups: dict[str, list[Verdict]] = {}
    for verdict in report.verdicts:
        groups.setdefault(_group(verdict), []).append(verdict)
    return [(name, str(len(found)), _words(found)) for name, found in groups.items()]


def _group(verdict: Verdict) -> str:
    if "+" in verdict.scenario:
        return RECOVERY
    return next((says for sign, says in GROUPS if verdict.scenario.startswith(sign)), verdict.says)


def _words(verdicts: list[Verdict]) -> str:
    return ", ".join(f"{count} {word}" for word, count in Counter(one.word for one in verdicts).most_common())


def bad_rows(report: ProofReport, most: int = 10) -> list[tuple[str, str, str, str]]:
    return [(one.scenario, one.says, one.word, _difference(one)) for one in report.bad[:most]]


def all_rows(report: ProofReport) -> list[tuple[str, str, str, str, str, str]]:
    """Every scenario: the fault, expected and observed effects, and the final state of the run."""
    return [
        (one.scenario, one.says, str(one.expected), str(one.seen), one.state or "-", one.word)
        for one in report.verdicts
    ]


def more_line(report: ProofReport, most: int = 10) -> str:
    left = len(report.bad) - most
    return f"… and {left} more, with --all or in --json." if left > 0 else ""


def _difference(verdict: Verdict) -> str:
    more = [f"{what} ({count} more)" for what, count in verdict.extra.items()]
    less = [f"{what} ({count} less)" for what, count in verdict.missing.items()]
    return "; ".join(more + less) or verdict.detail


def wrong_lines(report: ProofReport, instead: Mapping[str, str] | None = None) -> Iterator[str]:
    """Wrong declarations, and what to write instead. `instead` has other words for it, by how a step is declared."""
    for one in report.wrong:
        whose = one.step or f"{report.flow}:"
        yield f"{whose} {one.found}: {_some(one.effects)}, in {_some(one.scenarios)}."
        asked_in_vain = one.declared == "check" and report.unanswered
        first = (
            "First answer what it asks the stand-in, see below. If that is answered, write"
            if asked_in_vain
            else "Write"
        )
        yield f"  {first} instead: {(instead or {}).get(one.declared) or one.instead}."


def unanswered_lines(report: ProofReport) -> Iterator[str]:
    """Reads that found nothing only because the stand-in was given no answer to them."""
    for asked in report.unanswered:
        method, _, place = asked.partition(" ")
        path = "/" + place.partition("/")[2]
        yield (
            f"Not answered: {asked}. The stand-in knows no answer to it, so it found nothing (404). If a step looks "
            f'there for what it did, give it one with --http-answers (answers= in a test): {{"{method} {path}*": '
            '{"body": …, "after": "POST /…"}}.'
        )


def _some(names: tuple[str, ...], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def timeline(events: tuple[TimelineEvent, ...]) -> Iterator[str]:
    """One column per process, in order of time."""
    for number, event in enumerate(events, 1):
        gained = ", ".join(f"{what} +{count}" for what, count in event.world.items())
        yield f"{number:>4}  {'          │' * (event.process - 1)}process {event.process}: {event.what}" + (
            f"  → {gained}" if gained else ""
        )


def closing_line(report: ProofReport) -> str:
    count = len(report.verdicts)
    if not count:
        return "NOTHING PROVED: the time was up when one clean run was done; give more of it."
    share = "" if report.complete else f" of at least {report.planned}, for want of time"
    if not report.good:
        bad = len(report.bad)
        return f"NOT SAFE to repeat: of {_scenarios(count)} run{share}, {bad} ended otherwise than one clean run."
    missed = sum(one.word == "missed" for one in report.verdicts)
    parked = sum(one.word == "parked" for one in report.verdicts)
    passed_over = f" ({missed} of them never reached their fault)" if missed else ""
    waits = f"; in {parked} of them the run waits for a person, because the outcome cannot be known" if parked else ""
    tried = f"{_scenarios(count)} run{share}{passed_over}"
    safe = "Safe to repeat" if report.complete else "Safe to repeat as far as it went"
    if report.clocks:
        safe += " for as long as its key stays the same"
    return f"{safe}: {tried}, nothing happened twice and nothing was lost{waits}."


def _scenarios(count: int) -> str:
    return f"{count} scenario{'' if count == 1 else 's'}"
