"""Flows: open runs by version; of one flow what is live, its draft, releases and evidence, and how to start a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from ....declared.diff import differences
from ....declared.model import HttpSpec, ProbeSpec, RemoteSpec, SqlSpec
from ....declared.promotion import Releaser, pause, rollback
from ....declared.reading import ReadFlow, read_flow, walk
from ....declared.releases import FlowRelease, live_record, release_of, scenarios_told
from ....declared.views import FlowReleases, ProofShape, ReleaseShape, look_at_releases
from ....errors import Misuse
from ....flows.flow import Flow
from ....flows.history.queries import count_open_up_to
from ....flows.workers.presence import list_workers
from ....inbound.reply import Reply
from ....operations import Operation, await_
from ....safe_text import quoted
from ...routes import runs
from ...routes.flows import FlowRow, flow_rows, released
from ...tokens import Scope
from .. import listing as ui
from ..dashboard import PageRequest, PageSpec, refused
from ..formatting import href, shown_value
from ..forms import FormFields, FormOutcome
from ..start_form import fields_of, input_of, labels_of

__all__ = ["PAGES", "listed_rows"]

MOST = 50  # releases and changes on a page
FLOWS = (
    ui.Column("Flow"),
    ui.Column("Version"),
    *(ui.Column(word, is_number=True) for word in ("Running", "Queued", "Waiting", "In review")),
    ui.Column("Carried out by"),
)
NO_FLOWS = ("No flow is declared", "Declare one with @app.flow(key=…) on a function, and call it.", "")
RELEASES = tuple(ui.Column(word) for word in ("Release", "State", "Content", "Pushed by", "At", "Proved", "Note"))
EVIDENCE = (
    ui.Column("Test"),
    ui.Column("State"),
    ui.Column("Scenarios", is_number=True),
    ui.Column("Not observed"),
    ui.Column("Expected otherwise"),
)
STEPS = tuple(ui.Column(word) for word in ("Step", "Does", "If repeated"))
CHANGES = tuple(ui.Column(word) for word in ("When", "Who", "Did", "Release", "Evidence", "Why"))
NO_PROOF = ("Nothing is proved yet", "A content without evidence cannot go live. Prove it with:", "")


# -- the list ------------------------------------------------------------------------------------


def listed_rows(rows: Sequence[FlowRow]) -> list[ui.ListingRow]:
    return [
        ui.ListingRow(
            (
                ui.link(one.flow, href("flows", one.flow)),
                ui.code(one.version),
                *(ui.number(count) for count in (one.held, one.queued, one.waiting, one.review)),
                ui.text(_served(one)),
            )
        )
        for one in rows
    ]


def _served(one: FlowRow) -> str:
    if one.workers:
        return f"{one.workers} live"
    is_open = one.held + one.queued + one.waiting + one.review
    return "no live worker" + (": its open runs stay where they are" if is_open else "")


async def listed(page: PageRequest) -> Reply:
    counts, more = await await_(count_open_up_to(page.store, page.tenant))
    rows = flow_rows(page.app, counts, await await_(list_workers(page.store)))
    note = "Counted among the latest thousand runs in each state; there are others." if more else ""
    made = ui.Listing("Flows", FLOWS, listed_rows(rows), NO_FLOWS, note=note)
    return page.listing("Flows", made, ("flows", "list"), "/v1/flows")


# -- one flow ------------------------------------------------------------------------------------


class SeenFlow(Struct, frozen=True):
    """A flow as its page shows it: its releases, and the files of what is live and of the draft."""

    name: str
    releases: FlowReleases
    flow: Flow | None  # as this process has it
    live: FlowRelease | None
    draft: FlowRelease | None
    file: ReadFlow | None  # that new runs begin on, where it is a file
    version: str  # of the record that tells what is live

    @property
    def is_draft_ahead(self) -> bool:
        return self.draft is not None and (self.live is None or self.live.hash != self.draft.hash)


async def _seen(page: PageRequest) -> SeenFlow:
    name = page.param("name")
    try:
        record = await await_(live_record(page.store, page.tenant, name))  # first: what is shown is not older
        version = "" if record is None else record.version
        found = await await_(look_at_releases(page.store, page.tenant, name, most=MOST))
    except Misuse:
        version, found = "", FlowReleases(name, None, None, [], [])
    flow = page.app.flows.get(name)
    if flow is None and found.is_empty:
        raise refused(404, "no-such-flow", "There is no such flow.", next_move="List them: /flows")
    live = None if found.live is None else await await_(release_of(page.store, page.tenant, name, found.live.hash))
    draft = None if found.draft is None else await await_(release_of(page.store, page.tenant, name, found.draft))
    here = released(page.app, name)
    file = None if here is None else here.files.get(name)
    text = "" if live is None else live.text
    return SeenFlow(name, found, flow, live, draft, read_flow(text) if text else file, version)


async def show(page: PageRequest) -> Reply:
    seen = await _seen(page)
    live = seen.releases.live
    state = "" if live is None else "paused" if live.paused else "live"
    made = ui.DetailPage(
        seen.name,
        state,
        (("Flows", "/flows"), (seen.name, "")),
        list(_facts(seen)),
        acts=list(_start_form(page, seen)),
        lists=list(_lists(page, seen)),
        reason=_draft_differences(seen),
        rare_acts=list(_acts(page, seen)),
    )
    return page.details(made, ("flows", "releases", seen.name), f"/v1{href('flows', seen.name)}")


def _facts(seen: SeenFlow) -> Iterator[ui.Fact]:
    live = seen.releases.live
    if live is not None:
        yield ui.Fact("live", ui.link(live.release, href("flows", seen.name, live.release)))
        yield ui.Fact("since", ui.when(live.at))
        yield ui.Fact("by", ui.text(live.by))
    elif seen.flow is not None:
        yield ui.Fact("no release is live; runs begin on version", ui.code(seen.flow.version))
    if seen.is_draft_ahead and seen.draft is not None:
        yield ui.Fact("draft", ui.link(seen.draft.hash[:12], href("flows", seen.name, seen.draft.hash)))
    yield ui.Fact("runs", ui.link("all of this flow", href("runs", flow=seen.name)))


def _draft_differences(seen: SeenFlow) -> str:
    """Say how the draft differs from what is live, by meaning."""
    if not seen.is_draft_ahead or seen.draft is None:
        return ""
    if seen.live is None or not (seen.live.text and seen.draft.text):
        return "The draft is not live: no run begins on it."
    found = differences(read_flow(seen.live.text), read_flow(seen.draft.text))
    lines = [one.line() + (f" ({one.late})" if one.late else "") for one in found[:10]]
    return f"The draft differs from what is live: {'; '.join(lines) or 'in nothing that changes a run'}"


def _lists(page: PageRequest, seen: SeenFlow) -> Iterator[ui.Listing]:
    shown = seen.releases.of(seen.releases.draft) if seen.is_draft_ahead else None
    shown = shown or seen.releases.of(seen.live.hash if seen.live is not None else None)
    if shown is not None:
        which = "the draft" if seen.is_draft_ahead else shown.release or ""
        yield _evidence(page, shown, f"Evidence for {which}")
    if seen.releases.releases:
        yield ui.Listing("Releases", RELEASES, [_release_row(seen, one) for one in seen.releases.releases])
    if seen.file is not None:
        yield ui.Listing("Steps", STEPS, list(_step_rows(seen.file)))
    if seen.releases.changes:
        yield ui.Listing("Changes", CHANGES, list(_change_rows(seen.releases)))


def _release_row(seen: SeenFlow, one: ReleaseShape) -> ui.ListingRow:
    live = seen.releases.live
    word = "live" if live is not None and live.hash == one.hash else "draft" if one.hash == seen.releases.draft else ""
    name = one.release or one.hash
    return ui.ListingRow(
        (
            ui.link(one.release or "draft", href("flows", seen.name, name)),
            ui.state(word) if word else ui.text(""),
            ui.code(one.hash[:12]),
            ui.text(one.by),
            ui.when(one.at),
            ui.text(_proved(one.proof)),
            ui.text(one.note),
        )
    )


def _proved(proof: ProofShape | None) -> str:
    return "" if proof is None else scenarios_told(proof.scenarios, len(proof.results))


def _evidence(page: PageRequest, one: ReleaseShape, title: str) -> ui.Listing:
    title_, text, _ = NO_PROOF
    prove = page.command("flows", "test", f"{one.flow}.flow.yaml")
    if one.proof is None:
        return ui.Listing(title, EVIDENCE, [], (title_, text, prove))
    rows = [
        ui.ListingRow(
            (
                ui.text(test.name),
                ui.state("ok" if test.safe and not (test.unobserved or test.unmet) else "refuse"),
                ui.text(f"{test.completed} of {test.planned}"),
                ui.text(", ".join(test.unobserved)),
                ui.text("; ".join(test.unmet)),
            )
        )
        for test in one.proof.results
    ]
    proof = one.proof
    note = f"Run to depth {proof.depth} with twiceproof {proof.package}, by {proof.by or 'nobody'} on {proof.host}."
    return ui.Listing(title, EVIDENCE, rows, (title_, text, prove), note=note)


def _step_rows(read: ReadFlow) -> Iterator[ui.ListingRow]:
    for step in walk((*read.steps, *read.on_error)):
        about = getattr(step.spec, step.verb, "")
        does = f"{step.verb} {about}" if isinstance(about, str) else step.verb
        yield ui.ListingRow((ui.text(step.name), ui.code(does[:120]), ui.text(_repeated(step.spec))))


def _repeated(spec: Any) -> str:
    repeat = getattr(spec, "repeat", None)
    if not isinstance(repeat, ProbeSpec):
        return str(repeat or _repeat_of_undeclared(spec))
    if isinstance(repeat.keyed, str):
        return f"keyed by {repeat.keyed}"
    return f"check: {repeat.check}" if isinstance(repeat.check, str) else "check by a query"


def _repeat_of_undeclared(spec: Any) -> str:
    """What a step that declares nothing does when it is repeated."""
    if isinstance(spec, SqlSpec):
        return "safe: it only reads" if spec.query is not None else "safe: the row has a unique key"
    if isinstance(spec, HttpSpec):
        return "safe: it only reads"
    return "never: it is started once" if isinstance(spec, RemoteSpec) else ""


def _change_rows(found: FlowReleases) -> Iterator[ui.ListingRow]:
    for one in reversed(found.changes):
        yield ui.ListingRow(
            (
                ui.when(one.at),
                ui.text(one.by),
                ui.text(one.what),
                ui.text(f"r{one.number}" if one.number else ""),
                ui.text(one.evidence),
                ui.text(one.note),
            ),
            name=2,
        )


async def release(page: PageRequest) -> Reply:
    name, which = page.param("name"), page.param("release")
    try:
        found = await await_(release_of(page.store, page.tenant, name, which))
        seen = await await_(look_at_releases(page.store, page.tenant, name, most=MOST))
    except Misuse:
        raise refused(
            404, "no-such-release", "There is no such release.", next_move="List them on the flow's page."
        ) from None
    facts = [
        ui.Fact("content", ui.code(found.hash[:12])),
        ui.Fact("pushed", ui.when(found.at)),
        ui.Fact("by", ui.text(found.by)),
        *([ui.Fact("note", ui.text(found.note))] if found.note else []),
        *([ui.Fact("version", ui.code(found.version))] if found.version else []),
    ]
    shape = seen.of(found.hash)
    lists = [] if shape is None else [_evidence(page, shape, "Evidence")]
    values = []
    if found.text:
        lists.append(ui.Listing("Steps", STEPS, list(_step_rows(read_flow(found.text)))))
        values.append(("File", shown_value(found.text)))
    is_live = seen.live is not None and seen.live.hash == found.hash
    crumbs = (("Flows", "/flows"), (name, href("flows", name)), (found.name, ""))
    made = ui.DetailPage(f"{name} {found.name}", "live" if is_live else "", crumbs, facts, values, lists=lists)
    return page.details(made, ("flows", "show", name, "--release", found.name))


# -- acts ----------------------------------------------------------------------------------------


def _acts(page: PageRequest, seen: SeenFlow) -> Iterator[ui.ActForm]:
    live, name = seen.releases.live, seen.name
    if live is None:
        return
    note, version = ui.ActField("note", "Why"), (("version", seen.version),)
    earlier = tuple(one.release for one in seen.releases.releases if one.release and one.hash != live.hash)[:5]
    if earlier:
        about = "New runs begin on that release at once. Runs under way stay on theirs."
        to = ui.ActField("to", "To", choices=earlier)
        command = page.command("flows", "rollback", name, "--to", earlier[0])
        yield ui.ActForm(f"{href('flows', name)}/rollback", "Roll back", "release", about, command, (to, note), version)
    if live.version:
        return  # a flow in Python runs where its workers are
    verb, about = ("Resume", "Runs begin and continue again.") if live.paused else ("Pause", PAUSED)
    command = page.command("flows", verb.lower(), name)
    yield ui.ActForm(f"{href('flows', name)}/{verb.lower()}", verb, "release", about, command, (note,), version)


PAUSED = "No run begins or continues. What starts runs is still taken in, and waits."


def _start_form(page: PageRequest, seen: SeenFlow) -> Iterator[ui.ActForm]:
    """A form with one field for each leaf of the input. A file says with `manual` that people may start it."""
    if seen.flow is None:
        return
    file = None if seen.file is None else seen.file.file
    labels = ["Start a run"] if file is None else [*labels_of(file)]
    if labels:
        about = "The key of what you enter decides: what ran before is not run again."
        fields = tuple(one.shown() for one in fields_of(seen.flow, file))
        yield ui.ActForm(f"{href('flows', seen.name)}/start", labels[0], "run", about, _curl(page, seen.name), fields)


def _curl(page: PageRequest, name: str) -> str:
    """Return the command that starts a run over HTTP, as anybody's program does. Its token is not for a page."""
    address = f"{page.server}/v1{href('runs', name)}"
    token = ' -H "authorization: Bearer $TOKEN"' if page.call.principal.name else ""
    return f'curl --fail-with-body -H "content-type: application/json"{token} -d JSON {quoted(address)}'


async def start(page: PageRequest) -> Reply:
    async def act(given: FormFields) -> FormOutcome:
        seen = await _seen(page)
        flow = seen.flow
        if flow is None:
            raise refused(
                404, "no-such-flow", "This server does not have it.", next_move="Load its file, or its module."
            )
        file = None if seen.file is None else seen.file.file
        made = input_of([*fields_of(flow, file)], given)
        body = next(iter(made.values())) if len(flow.inputs.names) == 1 and made else made
        reply = await page.reply_of_api(runs.start, {"name": seen.name}, msgspec.json.encode(body))
        if reply.status >= 400:
            return FormOutcome.refused(reply)
        begun = msgspec.json.decode(reply.body, type=runs.StartedRun)
        return FormOutcome(href("runs", begun.run, said="started" if begun.started else "known"))

    return await page.submitted(act)


def _change(verb: str, said: str) -> PageSpec:
    """A page that changes which release is live, or whether it runs."""

    async def act(page: PageRequest) -> Reply:
        name = page.param("name")

        async def done(fields: FormFields) -> FormOutcome:
            who = Releaser(page.actor(fields), page.may(Scope.RELEASE))
            try:
                await await_(_changed(page, verb, name, who, fields))
            except Misuse as error:
                raise refused(409, "state-conflict", str(error), next_move="Look at it again.") from None
            return FormOutcome(href("flows", name, said=said))

        return await page.submitted(done)

    return PageSpec("POST", f"/flows/{{name}}/{verb}", Scope.RELEASE, act, "flows")


def _changed(page: PageRequest, verb: str, name: str, who: Releaser, fields: FormFields) -> Operation[Any]:
    note, seen = fields.get("note", ""), fields.get("version", "")
    if verb == "rollback":
        return rollback(page.store, page.tenant, name, who, to=fields.get("to", ""), note=note, seen=seen)
    return pause(page.store, page.tenant, name, who, paused=verb == "pause", note=note, seen=seen)


PAGES = (
    PageSpec("GET", "/flows", Scope.READ, listed, "flows"),
    PageSpec("GET", "/flows/{name}", Scope.READ, show, "flows"),
    PageSpec("GET", "/flows/{name}/{release}", Scope.READ, release, "flows"),
    PageSpec("POST", "/flows/{name}/start", Scope.RUN, start, "flows"),
    _change("rollback", "rolled-back"),
    _change("pause", "paused"),
    _change("resume", "resumed"),
)
