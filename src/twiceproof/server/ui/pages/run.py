"""One run: its reason, the moves that are safe next, its steps on a time line, evidence, input and result; and acts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from ....flows.history.fork import fork_run, plan_fork
from ....flows.history.queries import look_at_run
from ....flows.history.run_view import MoveShape, StepShape, WholeRun
from ....inbound.reply import Reply
from ....operations import await_
from ...routes import reviews, runs
from ...tokens import Scope
from ..dashboard import MOST_STEPS, PageRequest, PageSpec, refused
from ..formatting import ShownValue, href, shown_value, span
from ..forms import FormFields, FormOutcome, body_with
from .workers import find_missing_worker

__all__ = [
    "PAGES",
    "Bar",
    "SettleChoice",
    "ShownStep",
    "Tick",
    "choices_of",
    "moves_of",
    "ordered",
    "time_line",
]

# -- the view of it, without a store -------------------------------------------------------------

FIRST = {"unknown": 0, "failed": 1, "started": 2, "retry": 3, "waits": 4}  # before what is done
STEPS = 100  # on a page
WIDTH = 1_000
TICKS = 4
SHORT = 60  # characters of a result that are shown closed
NOTHING_DONE = "Nothing was done by your form. What can be done now is below."


class Bar(Struct, frozen=True):
    """A step on the time line, of a width of 1000."""

    x: float
    width: float
    tone: str
    label: str


class Tick(Struct, frozen=True):
    x: float
    text: str


class ShownStep(Struct, frozen=True):
    name: str
    state: str
    repeat: str
    starts: int
    took: float | None
    external: str
    problem: str
    short: str
    result: ShownValue | None
    settled: dict[str, Any] | None
    bar: Bar | None


def ordered(steps: Sequence[StepShape]) -> list[StepShape]:
    """Return the steps, those that are not done first; the others in the order in which they were done."""
    return sorted(steps, key=lambda step: (FIRST.get(step.state, 9), step.order, step.began_at or 0.0, step.name))


def time_line(steps: Sequence[StepShape], now: float) -> tuple[dict[str, Bar], list[Tick]]:
    """Return the position of each step between the first start and the last end. A step without an end reaches to
    now.
    """
    known = [step for step in steps if step.began_at is not None]
    if not known:
        return {}, []
    began = min(step.began_at or 0.0 for step in known)
    ends = {step.name: _end(step, now) for step in known}
    whole = max(max(ends.values()) - began, 0.001)
    bars = {}
    for step in known:
        at, end = step.began_at or 0.0, ends[step.name]
        x = round((at - began) / whole * WIDTH, 1)
        width = round(max((end - at) / whole * WIDTH, 4.0), 1)
        label = (
            f"began {span(at - began)} after the first, took {span(step.took)}"
            if step.took is not None
            else "settled by a person"
            if step.settled
            else "no end on record"
        )
        bars[step.name] = Bar(min(x, WIDTH - 4.0), min(width, WIDTH - min(x, WIDTH - 4.0)), _tone(step), label)
    return bars, [
        Tick(round(WIDTH * nth / TICKS, 1), span(whole * nth / TICKS) if nth else "0 s") for nth in range(TICKS + 1)
    ]


def _end(step: StepShape, now: float) -> float:
    """Return when a step ended. One that a person settled ended nobody knows when: its start is all that is known."""
    if step.settled:
        return step.began_at or 0.0
    if step.took is not None:
        return (step.began_at or 0.0) + step.took
    return max(
        step.recorded_at if step.state in ("done", "failed") else min(now, (step.began_at or 0.0) + 3_600.0),
        step.began_at or 0.0,
    )


def _tone(step: StepShape) -> str:
    return {"done": "good", "failed": "bad", "unknown": "ask"}.get(step.state, "busy")


class SettleChoice(Struct, frozen=True):
    """One decision that a person may make, as the API takes it."""

    why: str
    command: str
    value: str
    needs_result: bool


VERDICTS = {"--happened": "happened", "--did-not-happen": "did-not-happen", "--abandon": "abandon", "--retry": "retry"}


def choices_of(moves: Sequence[MoveShape], command: Any) -> list[SettleChoice]:
    """Return the next moves that settle the run, as choices of one form."""
    return [_choice(move, command(*move.words)) for move in moves if move.words[:2] == ("review", "settle")]


def _choice(move: MoveShape, command: str) -> SettleChoice:
    words = list(move.words[3:])
    fields: dict[str, Any] = {}
    needs_result = False
    while words:
        word = words.pop(0)
        if word in ("--step", "--evidence"):
            fields[word[2:]] = words.pop(0)
        elif word == "--result":
            text = words.pop(0)
            needs_result = text == "JSON"
            fields |= {} if needs_result else {"result": text}
        elif word == "--undo":
            fields["verdict"] = "undo"
        elif fields.get("verdict") == "undo":
            fields["did"] = word == "--happened"
        else:
            fields["verdict"] = VERDICTS[word]
    return SettleChoice(move.statement, command, msgspec.json.encode(fields).decode(), needs_result)


class ShownNext(Struct, frozen=True):
    """A next move that is not a decision: what the page can do itself, and the command."""

    why: str
    command: str = ""
    action: str = ""  # the last part of the act's address
    verb: str = ""
    scope: str = "run"
    href: str = ""


VERBS = {"retry": "Retry", "cancel": "Cancel", "fork": "Fork"}


def moves_of(moves: Sequence[MoveShape], command: Any) -> list[ShownNext]:
    """Return the other next moves. A fork's command has a place for the new key, and needs it filled in."""
    found = []
    for move in moves:
        verb = move.words[1] if len(move.words) > 1 else ""
        if move.words[:2] == ("review", "settle"):
            continue
        typed = command(*move.words) if move.words else ""
        if move.words[:1] == ("runs",) and verb in VERBS:
            found.append(ShownNext(move.why.rstrip(":"), typed, verb, VERBS[verb]))
        elif move.words[:2] == ("approvals", "show"):
            found.append(
                ShownNext(move.why.rstrip(":"), typed, "approval", "Decide", "read", href("approvals", move.words[2]))
            )
        else:
            found.append(ShownNext(move.why.rstrip(":"), typed))
    return found


def _shown_step(step: StepShape, base: str, bars: dict[str, Bar]) -> ShownStep:
    text = "" if step.result is None else bytes(step.result)[: SHORT * 4].decode(errors="ignore")
    short = text if len(text) <= SHORT else text[:SHORT] + "…"
    fault = f"{step.fault['type']}: {step.fault['message']}" if step.fault else step.reason
    value = shown_value(step.result, f"{base}/value?of=step&name={_quoted(step.name)}")
    return ShownStep(
        step.name,
        step.state,
        step.repeat,
        step.starts,
        step.took,
        step.external,
        fault[:2_000],
        short,
        value,
        step.settled,
        bars.get(step.name),
    )


def _quoted(name: str) -> str:
    return href(name)[1:]


def _counts(steps: Sequence[StepShape]) -> str:
    counts = Counter(step.state for step in steps)
    told = " · ".join(
        f"{state} {count}" for state, count in sorted(counts.items(), key=lambda one: FIRST.get(one[0], 9))
    )
    many = "+" if len(steps) >= MOST_STEPS else ""
    return f"{len(steps):,}{many}{' · ' + told if told else ''}"


# -- the page ------------------------------------------------------------------------------------


async def _whole(page: PageRequest) -> WholeRun:
    at = await await_(page.call.existing_run())
    return await await_(look_at_run(page.store, at, most=MOST_STEPS))


async def show(page: PageRequest) -> Reply:
    return await _page(page, await _whole(page))


async def _page(page: PageRequest, whole: WholeRun, status: int = 200, changed: dict[str, str] | None = None) -> Reply:
    run = whole.run
    base = href("runs", run.run)
    state, start = page.asked("steps"), page.number("from")
    those = [step for step in ordered(whole.steps) if state in ("", step.state)]
    bars, ticks = time_line(whole.steps, page.now)
    part = those[start : start + STEPS]
    states = Counter(step.state for step in whole.steps)
    return page.show(
        "run.html",
        f"{run.key} · {run.flow}",
        status,
        run=run,
        base=base,
        key_href=href("keys", run.flow, run.key),
        forked_from=whole.forked_from,
        forked_href=href("runs", whole.forked_from) if whole.forked_from else "",
        changed=changed,
        settled=whole.settled,
        nobody=await find_missing_worker(page, run),
        tone={"review": "ask", "failed": "bad"}.get(run.state, ""),
        choices=choices_of(whole.next, page.command),
        moves=moves_of(whole.next, page.command),
        seen=whole.record_version,
        counts=_counts(whole.steps),
        steps=[_shown_step(step, base, bars) for step in part],
        steps_older=href("runs", run.run, steps=state, from_=str(start + STEPS)) if len(those) > start + STEPS else "",
        steps_filtered=bool(state),
        step_filtered=bool(state),
        many_steps=len(whole.steps) >= MOST_STEPS,
        step_views=[
            ("All", base, not state),
            *((f"{one} {count}", href("runs", run.run, steps=one), one == state) for one, count in states.items()),
        ],
        ticks=ticks,
        evidence=[_shown_evidence(piece, base) for piece in whole.evidence],
        fault=whole.fault,
        input=shown_value(whole.input, f"{base}/value?of=input"),
        result=shown_value(whole.result, f"{base}/value?of=result"),
        pieces=whole.pieces,
        command=page.command("runs", "show", run.run),
        json=f"/v1{base}",
    )


def _shown_evidence(piece: Any, base: str) -> dict[str, Any]:
    shown = shown_value(piece.result, f"{base}/value?of=evidence&name={_quoted(piece.id)}")
    return {name: getattr(piece, name) for name in ("id", "step", "owner", "seen_at", "fault")} | {"shown": shown}


async def value(page: PageRequest) -> Reply:
    """A whole value as an attachment: a browser never shows it as a page."""
    whole = await _whole(page)
    of, name = page.asked("of"), page.asked("name")
    found = {"input": whole.input, "result": whole.result}.get(of)
    if of == "step":
        found = next((step.result for step in whole.steps if step.name == name), None)
    elif of == "evidence":
        found = next((piece.result for piece in whole.evidence if piece.id == name), None)
    if found is None:
        raise refused(404, "no-such-value", "This value is not kept.", next_move="Look at the run.")
    headers = (("content-type", "application/json"), ("content-disposition", 'attachment; filename="value.json"'))
    return Reply(200, headers, bytes(found))


# -- acts ----------------------------------------------------------------------------------------


async def settle(page: PageRequest) -> Reply:
    reply = await page.submitted(lambda fields: _settled(page, fields))
    return await _reply_or_changed_run(page, reply)


async def _settled(page: PageRequest, fields: FormFields) -> FormOutcome:
    try:
        choice = msgspec.json.decode(fields.get("choice", ""), type=dict[str, Any])
    except msgspec.DecodeError:
        raise refused(400, "nothing-chosen", "Nothing was chosen.", next_move="Go back, and choose one.") from None
    raw = {}
    if choice.get("verdict") == "happened" or choice.get("did") is True:
        typed = choice.pop("result", None) or _result_typed(fields)
        raw = {} if "evidence" in choice else {"result": typed or "null"}
    body = body_with(
        {**choice, "note": fields.get("note", ""), "version": fields.get("version", ""), **page.acting_as(fields)},
        **raw,
    )
    name = page.param("name")
    return await page.by_api(reviews.settle_review, {"name": name}, body, href("runs", name, said="settled"))


def _result_typed(fields: FormFields) -> str:
    return next((text.strip() for name, text in fields.pairs if name.startswith("result-") and text.strip()), "")


async def _reply_or_changed_run(page: PageRequest, reply: Reply) -> Reply:
    """Show the run as it is now where a decision about it was refused: mostly it changed since the person looked."""
    if reply.status != 409 or not reply.body:
        return reply
    told, fields, whole = msgspec.json.decode(reply.body), FormFields.of(page.call), await _whole(page)
    changed = {"title": "Changed since you looked", "next": NOTHING_DONE, "before": fields.get("before", "")}
    if told["type"].endswith(":sent-before"):  # whether something was done is not known
        changed |= {"title": "This form was sent before", "next": told["next"], "before": ""}
    elif whole.record_version == fields.get("version"):
        changed |= {"title": "This cannot be done", "next": f"Nothing was done. {told['next']}", "before": ""}
    return await _page(page, whole, 409, {**changed, "detail": told["detail"]})


ASKED = {
    "retry": (
        "Retry this run?",
        "Retry",
        "It is put back into the queue. Steps that are done stay done; what failed is tried again.",
    ),
    "cancel": ("Cancel this run?", "Cancel it", "It stops before its next step, and what it has done is undone."),
}


def _confirm(verb: str) -> Any:
    async def ask(page: PageRequest) -> Reply:
        whole = await _whole(page)
        run, (title, button, text) = whole.run, ASKED[verb]
        return page.show(
            "confirm.html",
            title,
            back=href("runs", run.run),
            tone="",
            lines=[f"{run.flow} · {run.key}", text],
            action=href("runs", run.run, verb),
            hidden=[("version", whole.record_version), ("before", run.state)],
            fields=[],
            verb=button,
            command=page.command("runs", verb, f"{run.flow}/{run.key}"),
        )

    return ask


def _change(verb: str, said: str) -> Any:
    handle = {"retry": runs.retry, "cancel": runs.cancel_run}[verb]

    async def act(page: PageRequest) -> Reply:
        name = page.param("name")

        async def done(fields: FormFields) -> FormOutcome:
            body = body_with({"version": fields.get("version", ""), **page.acting_as(fields)})
            return await page.by_api(handle, {"name": name}, body, href("runs", name, said=said))

        return await _reply_or_changed_run(page, await page.submitted(done))

    return act


async def ask_fork(page: PageRequest) -> Reply:
    """Show what a fork would do, before it is done."""
    whole = await _whole(page)
    run, key, step = whole.run, page.asked("key"), page.asked("step")
    at = await await_(page.call.existing_run())
    plan = await await_(plan_fork(page.store, at, key or f"{run.key}:again", step))
    lines = [
        f"{run.flow} · {run.key}",
        f"A new run begins with the same input. Done again: {', '.join(plan.again) or 'nothing'}.",
        f"Kept from the first run: {', '.join(plan.kept) or 'nothing'}.",
        "Effects that are done again are new ones, with keys of their own.",
    ]
    fields = [
        {"label": "Key of the new run", "name": "key", "value": plan.key, "required": True},
        {
            "label": "Keep what came before this step (empty: keep nothing)",
            "name": "step",
            "value": step,
            "required": False,
        },
    ]
    return page.show(
        "confirm.html",
        "Fork this run?",
        back=href("runs", run.run),
        tone="",
        lines=lines,
        action=href("runs", run.run, "fork"),
        hidden=[],
        fields=fields,
        verb="Fork it",
        command=page.command(
            "runs", "fork", f"{run.flow}/{run.key}", "--key", plan.key, *(["--from", step] if step else [])
        ),
    )


async def fork(page: PageRequest) -> Reply:
    async def done(fields: FormFields) -> FormOutcome:
        at = await await_(page.call.existing_run())
        key, step = fields.get("key", "").strip(), fields.get("step", "").strip()
        starter = page.call.principal.name
        made = await await_(fork_run(page.store, at, key, step, by=page.actor(fields), starter=starter))
        return FormOutcome(href("runs", made.run, said="forked"))

    return await page.submitted(done)


PAGES = (
    PageSpec("GET", "/runs/{name}", Scope.READ, show, "runs"),
    PageSpec("GET", "/runs/{name}/value", Scope.READ, value, "runs"),
    PageSpec("POST", "/runs/{name}/settle", Scope.APPROVE, settle, "review"),
    PageSpec("GET", "/runs/{name}/retry", Scope.RUN, _confirm("retry"), "runs"),
    PageSpec("POST", "/runs/{name}/retry", Scope.RUN, _change("retry", "retried"), "runs"),
    PageSpec("GET", "/runs/{name}/cancel", Scope.RUN, _confirm("cancel"), "runs"),
    PageSpec("POST", "/runs/{name}/cancel", Scope.RUN, _change("cancel", "cancelled"), "runs"),
    PageSpec("GET", "/runs/{name}/fork", Scope.RUN, ask_fork, "runs"),
    PageSpec("POST", "/runs/{name}/fork", Scope.RUN, fork, "runs"),
)
