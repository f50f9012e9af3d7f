"""The verdict: what must be true after the chaos, whatever happened in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from tests.faults.chaos.traces import Seen, Traces

ENDS = ("done", "failed", "review")
ONCE = ("keyed", "check", "transaction")
RETURNED = ("keyed", "check", "transaction", "never")  # what the flow returns, in this order

ANSWER_LOST = "its answer was lost on the way"
KILLED_AFTER = "its worker was killed between request and record"
KILLED_BEFORE = "its worker was killed between intent and request"
DATABASE_KILLED = "the database was killed before it was recorded"
UNEXPLAINED = "nothing explains it"
LONGEST = 20  # violations that are named; the others are counted


class Verdict(Struct, frozen=True):
    """`violations` is empty, or a promise was broken."""

    violations: list[str]
    states: Counter[str]
    twice: Counter[str]
    causes: Counter[str]  # of what is in review
    cut_off: Counter[str]  # effects whose worker was killed before they were on record

    def __str__(self) -> str:
        more = len(self.violations) - LONGEST
        return "\n".join([*self.violations[:LONGEST], *([f"… and {more} more"] if more > 0 else [])])


def judge(traces: Traces, runs: int) -> Verdict:
    causes = {order: cause_of(traces, order) for order, run in traces.runs.items() if run.state == "review"}
    violations = [
        *_not_ended(traces, runs),
        *_miscounted(traces),
        *_misremembered(traces),
        *(f"order {order} is in review, and {why}" for order, why in causes.items() if why == UNEXPLAINED),
    ]
    states = Counter(run.state for run in traces.runs.values())
    return Verdict(violations, states, twice(traces), Counter(causes.values()), cut_off(traces, causes))


# -- violations ----------------------------------------------------------------------------------


def _not_ended(traces: Traces, runs: int) -> Iterator[str]:
    for order in range(runs):
        run = traces.runs.get(order)
        if run is None or run.state not in ENDS:
            yield f"order {order} never ended: it is {run.state if run else 'unknown'}"


def _miscounted(traces: Traces) -> Iterator[str]:
    """Check the counts: exactly one effect where that is possible; at most one where a person must decide."""
    for order, run in traces.runs.items():
        counts = {kind: len(traces.receipts(kind, order)) for kind in RETURNED}
        reached = run.state in ("done", "review")
        for kind in ONCE:
            if counts[kind] > 1 or (reached and counts[kind] == 0):
                yield f"order {order} is {run.state}, and its {kind} step took effect {counts[kind]} times"
        if counts["never"] > 1 or (run.state == "done" and counts["never"] == 0):
            yield f"order {order} is {run.state}, and its never step took effect {counts['never']} times"
        if reached and not traces.receipts("safe", order):
            yield f"order {order} is {run.state}, and its safe step was never done"


def _misremembered(traces: Traces) -> Iterator[str]:
    """Check that the results in the ledger are those of the effect server."""
    for order, run in traces.runs.items():
        if run.state == "done":
            receipts = [traces.receipts(kind, order) for kind in RETURNED]
            if not all(kept in given for kept, given in zip(run.result, receipts, strict=True)):
                yield f"order {order} remembers {run.result}, and the world gave {receipts}"


def twice(traces: Traces) -> Counter[str]:
    """Count the steps of each kind that took effect more than once."""
    return Counter(kind for (kind, _), done in traces.done.items() if kind != "safe" and len(done) > 1)


# -- why a run is in review ----------------------------------------------------------------------


def cause_of(traces: Traces, order: int) -> str:
    """Return why its outcome was unknown, as seen from outside. The last visitor is the one that found it so."""
    if traces.lost.get(("never", order)):
        return ANSWER_LOST
    requests = traces.begun.get(("never", order), [])
    if requests:
        return _cut_after(traces, order, requests[-1])
    return _cut_before(traces, order)


def _cut_after(traces: Traces, order: int, request: Seen) -> str:
    """Whether its sender was cut off before the next visit. The request may be read after its sender's death."""
    found = _next_visit(traces, order, request)
    if traces.was_killed(request.who, found):
        return KILLED_AFTER
    came = max(visit.at for visit in traces.visits[order] if visit.who == request.who and visit.at <= request.at)
    return DATABASE_KILLED if traces.database_was_killed(came, found) else UNEXPLAINED


def _cut_before(traces: Traces, order: int) -> str:
    """Whether a worker was cut off before it sent a request, if none was seen."""
    visits = [(visit, _next_visit(traces, order, visit)) for visit in traces.visits.get(order, [])]
    if any(traces.was_killed(visit.who, found) for visit, found in visits):
        return KILLED_BEFORE
    if any(traces.database_was_killed(visit.at, found) for visit, found in visits):
        return DATABASE_KILLED
    return UNEXPLAINED


def _next_visit(traces: Traces, order: int, seen: Seen) -> float:
    """Return the time of the next visit. Nothing that happened after it can be the cause."""
    return min((visit.at for visit in traces.visits.get(order, []) if visit.at > seen.at), default=-1.0)


# -- how often the storm hit where it hurts ------------------------------------------------------


def cut_off(traces: Traces, causes: dict[int, str]) -> Counter[str]:
    """Count effects whose workers were killed before they recorded them, by kind of step."""
    hits = Counter(never=sum(cause == KILLED_AFTER for cause in causes.values()))
    for kind, later in (("keyed", traces.known), ("check", traces.asked)):
        for (of, order), seen in later.items():
            first = traces.done.get((kind, order))
            if of == kind and first:
                hits[kind] += traces.was_killed(first[0].who, seen[-1].at)
    return hits
