"""Moves runs under way to another release of their flow, after a rehearsal that does nothing.

The rehearsal replays a copy of a run's records, in memory, against the other release: its steps raise instead of
acting. The engine's own rule decides: the recorded steps must be called again, in order, with the same arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from msgspec import Struct, structs

from ..app.app import App
from ..claims.claim import HELD, QUEUED, WAITING, body_of, claim_of, parse_space, shown_id
from ..errors import Misuse
from ..flows.engine.exits import Ended, HandedBack, Reviewed, RunFailed, Suspended
from ..flows.engine.run_states import is_broken, queue_of, with_work, work_of
from ..flows.engine.runner import RunExecution
from ..flows.flow import Flow
from ..flows.history.queries import read_run, require_run
from ..flows.step import Step
from ..operations import Operation, block
from ..outbox.routing import TopicRoute
from ..records import Address, Insert, Record, Replace, Written, kinds_beside_runs
from ..stores.base import Store, scan_all
from ..stores.open import open_store
from .connections import Connections
from .flow_files import compile_file, declare_flow
from .live import scratch_app
from .reading import ReadFlow, called_flows, read_flow
from .releases import FlowRelease, live_of, release_of

__all__ = ["RunMove", "move_run", "rehearse"]


# Every message is written into the rehearsal's copy in memory, which no relay reads.
EVERY_TOPIC = TopicRoute("*", "rehearsal", large="reference")
NOWHERE = "https://rehearsal.invalid"  # where callbacks of a rehearsal would arrive: nothing is started, so none does


class RunMove(Struct, frozen=True):
    """What would become of one run on the other release."""

    run: str
    flow: str
    key: str
    state: str
    before: str  # its version
    goes_on: bool
    says: str
    record: Record | None = None  # the version that was rehearsed: the run is moved only if it is unchanged


class WouldAct(BaseException):
    """A step that is not in the ledger was reached. Not an Exception, so that no flow can catch it and continue."""


def rehearse(store: Store, at: Address, release: FlowRelease, connections: Connections) -> Operation[RunMove]:
    """Return whether a run could continue on another release of its flow. Nothing is changed, and nothing is done."""
    record = require_run((yield from read_run(store, at)))
    claim = claim_of(record)
    move = RunMove(shown_id(at), claim.operation, claim.key, record.state, work_of(claim).version, False, "", record)
    read = read_flow(release.text)
    why_not = _unfit(record, release)
    if why_not:
        return structs.replace(move, says=why_not)
    if move.before == release.name:
        return structs.replace(move, goes_on=True, says="is on it already")
    called = yield from _called(store, parse_space(at.space).tenant, read)
    unknown = [name for name, one in called.items() if one is None]
    if unknown:
        return structs.replace(move, says=f"it calls {', '.join(unknown)}, of which no release of a file is live")
    copies = yield from _copied(store, record, release)
    whole = [read, *(one for one in called.values() if one is not None)]
    goes_on, says = _replayed(copies, record, release, whole, connections)
    if goes_on and is_broken(record, claim):
        says += f"; then: twiceproof runs retry {move.run}"
    return structs.replace(move, goes_on=goes_on, says=says)


def _unfit(record: Record, release: FlowRelease) -> str:
    claim = claim_of(record)
    if claim.operation != release.flow:
        return f"it is a run of {claim.operation}, and not of {release.flow}"
    if record.state == HELD:
        return "a worker has it at this moment; try again"
    if record.state not in (QUEUED, WAITING) and not is_broken(record, claim):
        return f"it is {record.state}, and does not go on by itself"
    return ""


def _called(store: Store, tenant: str, read: ReadFlow) -> Operation[Mapping[str, ReadFlow | None]]:
    """Return the flows that a file calls, as they are live: their keys are in the names of the recorded calls."""
    found: dict[str, ReadFlow | None] = {}
    for name in called_flows(read):
        live = yield from live_of(store, tenant, name)
        text = "" if live is None else (yield from release_of(store, tenant, name, live.hash)).text
        found[name] = read_flow(text) if text else None
    return found


# -- the rehearsal -------------------------------------------------------------------------------


def _copied(store: Store, record: Record, release: FlowRelease) -> Operation[list[Insert]]:
    """Return a copy of a run's records, with the run due now, on the other release."""
    claim = claim_of(record)
    body = body_of(with_work(structs.replace(claim, reason="", fault=None), version=release.name))
    queue = queue_of(claim.tenant, claim.operation, release.name)
    copies = [Insert(record.at, body, QUEUED, queue=queue, due_in=0.0)]
    for kind in kinds_beside_runs():
        for one in (yield from scan_all(store, kind, space=record.at.space)):
            copies.append(Insert(one.at, one.body, one.state))
    return copies


def _replayed(
    copies: Sequence[Insert], record: Record, release: FlowRelease, reads: Sequence[ReadFlow], connections: Connections
) -> tuple[bool, str]:
    """Replay a run's records in memory. `reads`: the release's file, then those of the flows that it calls."""
    read, *called = reads
    memory = open_store("memory://")
    tenant = parse_space(record.at.space).tenant
    with App(memory, tenant=tenant, url=NOWHERE) as app:
        for one in copies:
            memory.write(one).block()
        app.routing.routes.append(EVERY_TOPIC)
        for other in called:  # the key is in the name of the call; it is never run
            declare_flow(app, other, _halt, "rehearsal").flow.releases = NotStarted()
        view = scratch_app(app, release.flow)
        view.remote = _unstarted(view)  # type: ignore[method-assign]
        flow = compile_file(view, read, connections, release.name).flow.of(tenant)
        for step in _every(view.steps):
            step.function = _halt
        app.runtime.heartbeat.stop()
        (due,) = memory.due(record.at.kind, queues=flow.queues).block().records
        flow.releases = NotStarted()  # it may call itself
        return _resumed(flow, due)


def _resumed(flow: Flow, due: Record) -> tuple[bool, str]:
    execution = RunExecution.of_record(flow, due, claim_of(due))
    flow.results.prepare()
    if block(execution.take()) is not None:
        return False, "could not be rehearsed; try again"
    try:
        ended = block(execution.run())
    except WouldAct as reached:
        ended = HandedBack(reached)
    gone = execution.unvisited if isinstance(ended, HandedBack | Suspended) else []
    if gone:  # the engine would notice only at the next step that acts, after the move
        return (
            False,
            f"would stop: the flow changed under this run: it no longer calls {', '.join(gone)}, in the ledger",
        )
    return _told(ended)


def _halt(*args: object, **kwargs: object) -> NoReturn:
    raise WouldAct


def _not_started(url: str, effect_key: str = "") -> None:
    raise WouldAct


def _unstarted(app: App) -> Any:
    """Return `app.remote`, which waits for what was started, and starts nothing."""
    waits = app.remote

    def remote(*, start: Any, **options: Any) -> Any:
        return waits(start=_not_started, **options)

    return remote


class NotStarted:
    """In the place of a called flow's releases: no run of it begins, and no earlier one is looked for."""

    live = is_paused = versions = carrying = _halt


def _every(steps: Sequence[Step]) -> Iterator[Step]:
    for step in steps:
        yield step
        if step.undo is not None:
            yield from _every([step.undo])


def _told(ended: Ended) -> tuple[bool, str]:
    match ended:
        case HandedBack():
            return True, "goes on with its next step"
        case Suspended(why, _):
            return True, f"goes on: {why}"
        case Reviewed(reason):
            return False, f"would stop: {reason}"
        case RunFailed(error):
            return False, f"would fail: {error}"
        case _:
            return True, "goes on to its end: everything is done"


# -- the move ------------------------------------------------------------------------------------


def move_run(store: Store, move: RunMove, release: FlowRelease) -> Operation[bool]:
    """Move a rehearsed run to the other release. False: it has changed since, or could not continue."""
    record = move.record
    if not move.goes_on or record is None:
        return False
    if move.before == release.name:
        return True
    if not release.number:
        raise Misuse(f"{release.name} of {release.flow} was never live; promote it first.")
    claim = claim_of(record)
    now = (yield from store.read(record.at)).now
    due_in = None if record.due_at is None else max(0.0, record.due_at - now)
    queue = queue_of(claim.tenant, claim.operation, release.name) if record.queue else ""
    body = body_of(with_work(claim, version=release.name))
    moved = Replace(record.at, body, record.state, version=record.version, queue=queue, due_in=due_in)
    return isinstance((yield from store.write(moved)), Written)
