"""Runs as tables and as a timeline of their steps."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ..claims.claim import HELD
from ..flows.engine.ledger import RETRY, STARTED, STEP_DONE, STEP_FAILED, UNKNOWN, WAITS
from ..flows.engine.step_identity import has_id, stem_of
from ..flows.history.run_view import EvidenceShape, RunShape, StepShape, WholeRun
from .output import clean, moment, show_moves, show_pairs, show_table, show_text, span, with_rich

__all__ = ["shortened", "show_rows", "show_run", "show_runs"]


HEAD = ("FLOW", "KEY", "STATE", "AGE", "REASON")
LEAST = 16  # characters of a reason that are shown however wide the other columns are


def show_runs(runs: Sequence[RunShape]) -> None:
    show_rows(HEAD, [(f"{run.flow}@{run.version}", run.key, run.word, span(run.age), run.reason) for run in runs])


def show_rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose last column, a reason, is cut to the terminal. In a pipe nothing is cut, for `| grep`."""
    columns = list(zip(head, *rows, strict=True))[:4]
    gap, edges = (3, 2) if with_rich() else (2, 0)
    others = edges + sum(gap + max(len(clean(cell)) for cell in column) for column in columns)
    room = max(LEAST, shutil.get_terminal_size().columns - others) if sys.stdout.isatty() else sys.maxsize
    show_table(head, [(*row[:4], shortened(row[4], room)) for row in rows])


def shortened(text: str, room: int) -> str:
    text = clean(text)
    return text if len(text) <= room else text[: room - 1] + "…"


SIGNS = {STEP_DONE: "+", STEP_FAILED: "x", RETRY: "~", STARTED: ".", UNKNOWN: "?", WAITS: ":"}
WIDTH = 80
FEW_ITEMS = 10  # items of one step that are shown one by one; of more, those that are done are counted
SOME_DONE = 2
LINE = 60  # characters of a result or an error beside a step


def show_run(whole: WholeRun, moves: Sequence[dict[str, Any]], *, fold: bool = True) -> None:
    show_pairs(list(_pairs(whole)))
    if whole.steps or whole.pieces:
        show_text("\nSteps (time since the run was created):")
        for line in _timeline(whole, fold=fold):
            show_text(line)
    show_moves((move["why"], move["command"]) for move in moves)


def _pairs(whole: WholeRun) -> Iterator[tuple[str, Any]]:
    run = whole.run
    yield "run", run.run
    yield "flow", f"{run.flow}@{run.version}"
    yield "key", run.key
    yield "tenant", run.tenant
    yield "state", run.word + (f", {_undoing(whole)}" if whole.undoing else "")
    if run.reason:
        yield "reason", run.reason
    yield "attempt", f"{run.attempt}, by {run.owner}" if run.owner else run.attempt
    yield "correlation", run.correlation or "-"
    yield "link", run.link or "-"
    if whole.forked_from:
        yield "forked from", whole.forked_from
    yield "created", f"{moment(run.created_at)} ({span(run.age)} ago)"
    yield "updated", moment(run.updated_at)
    if run.due_at is not None:
        due = run.due_at <= run.created_at + run.age
        yield "continues", "when a worker takes it, or with the next call" if due else moment(run.due_at)
    if run.state == HELD:
        yield "lease", f"until {moment(whole.lease_until)}"
    yield from _ends(whole)


def _undoing(whole: WholeRun) -> str:
    """Describe the undo. A run that has ended is called undone only if a step was undone."""
    if whole.run.state != STEP_FAILED:
        return f"being undone ({whole.undoing})"
    undone = any(step.is_undo and step.state == STEP_DONE for step in whole.steps)
    return f"undone ({whole.undoing})" if undone else f"{whole.undoing}, nothing undone"


def _ends(whole: WholeRun) -> Iterator[tuple[str, Any]]:
    if whole.input is not None:
        yield "input", _json(whole.input)
    if whole.result is not None:
        yield "result", _json(whole.result)
    elif whole.run.state == STEP_DONE:
        yield "result", "not kept, or expired"
    if whole.settled:
        settled = whole.settled
        yield "settled", f"{settled['verdict']}, by {settled['by']}, {moment(settled['at'])}"
        if settled["note"]:
            yield "note", settled["note"]


def _timeline(whole: WholeRun, *, fold: bool) -> Iterator[str]:
    begun = whole.run.created_at
    for step in _folded(whole.steps) if fold else whole.steps:
        if isinstance(step, str):
            yield step
            continue
        evidence = [piece for piece in whole.evidence if piece.step == step.name]
        yield from _step_lines(step, begun, evidence)
    known = {step.name for step in whole.steps}
    for piece in whole.evidence:
        if piece.step not in known:
            yield from _lines(f"evidence about {piece.step or 'the run'}", _evidence_text(piece))
    for other in whole.pieces:
        yield f"{_since(other.created_at, begun)}  > {other.kind} {other.key} {other.state}".rstrip()


def _folded(steps: Sequence[StepShape]) -> Iterator[StepShape | str]:
    """Fold each large batch, in the place of its first item: items not done, a few that are done, and a count."""
    batches: dict[str, list[StepShape]] = {}
    for step in steps:
        if has_id(step.name):
            batches.setdefault(stem_of(step.name), []).append(step)
    large = {name: items for name, items in batches.items() if len(items) > FEW_ITEMS}
    for step in steps:
        name = stem_of(step.name)
        if not (has_id(step.name) and name in batches and len(batches[name]) > FEW_ITEMS):
            yield step
        elif name in large:
            yield from _batch(name, large.pop(name))


def _batch(name: str, items: Sequence[StepShape]) -> Iterator[StepShape | str]:
    fine = [item for item in items if item.state == STEP_DONE and not item.settled]
    yield from (item for item in items if item not in fine)
    yield from fine[:SOME_DONE]
    if len(fine) > SOME_DONE:
        yield f"{' ' * 11}+ and {len(fine) - SOME_DONE} more of {name}, all done; --all shows them"


def _step_lines(step: StepShape, begun: float, evidence: Sequence[EvidenceShape]) -> Iterator[str]:
    yield f"{_since(step.recorded_at, begun)}  {SIGNS.get(step.state, ' ')} {step.name}  {', '.join(_facts(step))}"
    if step.result is not None:
        yield from _lines("returned", _json(step.result))
    if step.fault:
        yield from _lines("error", f"{step.fault['type']}: {step.fault['message']}")
    if step.reason:
        yield from _lines("reason", step.reason)
    if step.external:
        yield from _lines("external id", step.external)
    if step.settled:
        note = f": {step.settled['note']}" if step.settled["note"] else ""
        yield from _lines("settled", f"{step.settled['verdict']}, by {step.settled['by']}{note}")
    for piece in evidence:
        yield from _lines(f"evidence {piece.id}", _evidence_text(piece))


def _facts(step: StepShape) -> Iterator[str]:
    yield step.state
    if step.repeat:
        yield f"repeat={step.repeat}"
        yield f"{step.starts} attempt{'' if step.starts == 1 else 's'}"
    if step.took is not None:
        yield f"took {span(step.took)}"
    if step.not_before is not None and step.state != STEP_DONE:
        yield f"{'until' if step.state == WAITS else 'not before'} {moment(step.not_before)}"


def _evidence_text(piece: EvidenceShape) -> str:
    found = _json(piece.result) if piece.result is not None else ""
    fault = f"{piece.fault['type']}: {piece.fault['message']}" if piece.fault else ""
    return f"{found or fault or 'nothing'} (by {piece.owner}, {moment(piece.seen_at)})"


def _since(at: float, begun: float) -> str:
    return f"+{span(max(0.0, at - begun))}".rjust(9)


def _lines(name: str, text: str) -> Iterator[str]:
    yield f"{' ' * 13}{name}: {shortened(text, max(LINE, WIDTH - 15 - len(name)))}"


def _json(raw: msgspec.Raw) -> str:
    return shortened(bytes(raw).decode(), 2_000)
