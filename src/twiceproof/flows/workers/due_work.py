"""Due work: the protocol of a kind of due record, and DueRuns, which takes due runs and runs them.

The lease of recurring work (a poll, a schedule) follows its interval and is renewed while a worker is at it: a dead
worker is replaced after a few intervals, and one that takes long is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from ...claims.claim import RUN, Claim, Held, LostHold, claim_of, run_id, shown_id
from ...claims.held_claim import Heartbeat, HeldClaim
from ...claims.policy import LONGEST_LEASE
from ...claims.states import ClaimRequest
from ...effects.duplicate_alerts import KIND as NOTICE_KIND
from ...effects.incidents import Incidents
from ...errors import Cancelled, Misuse, StepFailed, TwiceproofError
from ...operations import Operation, await_
from ...records import Found, Record, Replace, Written
from ...safe_text import suggested_command
from ...stores.base import Store
from ..engine.exits import Ended, Finished, HandedBack, RunFailed, Superseded, Suspended
from ..engine.run_dependencies import LOOK_AGAIN, must_wait
from ..engine.run_states import RunState, work_of
from ..engine.runner import RunExecution
from ..flow import NORMAL, Flow
from ..limits import FlowLimits, Full, holding
from ..runtime import postpone
from .log import About, about_var

__all__ = ["DueRuns", "DueWork", "IncidentScan", "resume_run", "take_due"]


log = logging.getLogger("twiceproof.work")

NOT_OURS = 60.0  # seconds after which a run that was handed out and could not be taken is handed out again


class DueWork(Protocol):
    """A kind of due record that workers carry out. Derive from it, and append an instance to `app.due_work`."""

    kind: str  # of the records it serves
    rank: int = 1  # lower ranks are served first; within one rank they take turns

    def queues(self) -> list[str]:
        """Return the queues to look in. Called before each fetch: what is declared later is served, too."""
        raise NotImplementedError

    def flow_of(self, queue: str) -> str:
        """Return the flow that a queue belongs to: a worker may serve some flows only."""
        return queue.partition("/")[2].rpartition("@")[0]

    def prepare(self) -> Operation[None]:
        """Write the records that are to fall due. Called before a worker begins, and from time to time."""
        yield from ()

    def carry_out(self, record: Record) -> Operation[None]:
        """Carry out a due record. It is hidden from other workers for a few seconds: take it by its version, or it is
        handed out again."""
        raise NotImplementedError

    def pause_before_retry(self, record: Record) -> float:
        """Return for how many seconds a record that could not be carried out is left alone."""
        return LONGEST_LEASE

    def about(self, record: Record) -> About:
        """Return the run that log lines are about while the record is carried out, if it is one."""
        return About()

    def is_async(self, record: Record) -> bool:
        """Whether it must be carried out on an event loop."""
        return False


# -- periodic work -------------------------------------------------------------------------------


def take_due(store: Store, heartbeat: Heartbeat, record: Record, lease: float) -> Operation[HeldClaim | None]:
    """Take a record as it was handed out, and renew its lease until the hold is dropped. None: another worker has it.

    The last write is conditional on the fence and changes it: a late renewal cannot undo it.
    """
    taken = yield from store.write(
        Replace(record.at, None, version=record.version, draw=True, lease=lease, queue=record.queue, due_in=lease)
    )
    if not isinstance(taken, Written):
        return None
    held = Held(record.at, taken.fence, "", 1, "", lease, 0.0, record.queue, taken.now)
    request = ClaimRequest(at=record.at, operation=record.queue, key=record.at.key, owner="", lease=lease)
    hold = HeldClaim(request, held)
    hold.renew = lambda held: _renew(store, held)
    heartbeat.keep(hold)
    return hold


def _renew(store: Store, held: Held) -> Operation[Held | LostHold]:
    again = Replace(held.at, None, fence=held.fence, lease=held.lease, queue=held.queue, due_in=held.lease)
    written = yield from store.write(again)
    return held if isinstance(written, Written) else LostHold("another worker's", "")


# -- runs ----------------------------------------------------------------------------------------


class DueRuns(DueWork):
    """Runs that are queued, have slept long enough, or were left by a holder that crashed.

    Serves the flows of one rank, in the versions that are declared here. Runs of other versions are not fetched.
    """

    kind = RUN

    def __init__(
        self, store: Store, flows: Mapping[str, Flow], tenants: Callable[[], Iterable[str]], rank: int = NORMAL
    ) -> None:
        self.rank = rank
        self._store = store
        self._flows = flows
        self._tenants = tenants
        self._made_of: tuple[list[Flow], list[str], list[tuple[str, ...]]] = ([], [], [])
        self._queues: list[str] = []

    def queues(self) -> list[str]:
        """Return the same list while nothing has changed: it is needed for each fetch, with thousands of tenants."""
        flows = [flow for flow in self._flows.values() if flow.rank == self.rank]
        tenants = list(self._tenants()) if flows else []
        made_of = flows, tenants, [versions for tenant in tenants for versions in _released(flows, tenant)]
        if made_of != self._made_of:
            self._made_of = made_of
            self._queues = [queue for tenant in made_of[1] for flow in flows for queue in flow.of(tenant).queues]
        return self._queues

    def is_async(self, record: Record) -> bool:
        return self._flow(record).drive is await_

    def _flow(self, record: Record) -> Flow:
        tenant = record.queue.partition("/")[0]
        for flow in list(self._flows.values()):
            found = flow.of(tenant).carrying(record.queue)
            if found is not None:
                return found
        raise Misuse(f"No flow is declared for {record.queue}; declare it, or leave its runs to workers that have it.")

    def carry_out(self, record: Record) -> Operation[None]:
        flow = self._flow(record)
        ended = yield from resume_run(flow, record)
        if ended is None:  # another worker has it; if none has, it must not be handed out again at once for ever
            yield from postpone(self._store, record, NOT_OURS)
        else:
            _log_end(ended, flow.runtime.where)

    def about(self, record: Record) -> About:
        claim = claim_of(record)
        run = shown_id(record.at)
        return About(work_of(claim).correlation or run, run, claim.operation, claim.key)


def _released(flows: Iterable[Flow], tenant: str) -> Iterator[tuple[str, ...]]:
    """The versions that can change while a worker runs: those of the flows whose releases are in the store."""
    for flow in flows:
        if flow.releases is not None:
            yield flow.releases.versions(flow.of(tenant))


# -- resuming ------------------------------------------------------------------------------------


def resume_run(flow: Flow, record: Record) -> Operation[Ended | None]:
    """Take a due run and run it, if the run before it has ended and its limits admit it. None: it was taken already."""
    store, claim = flow.runtime.store, claim_of(record)
    flow.results.prepare()
    if work_of(claim).follows and (yield from must_wait(store, claim, run_id(record.at.space))):
        yield from postpone(store, record, LOOK_AGAIN)
        return Suspended("waits for the run before it", None)
    if flow.limits is None:
        return (yield from _take_and_run(flow, record, claim))
    return (yield from _resume_limited(flow, flow.limits, record, claim))


def _resume_limited(flow: Flow, limits: FlowLimits, record: Record, claim: Claim) -> Operation[Ended | None]:
    try:
        arguments = yield from _limited_by(flow, limits, record, work_of(claim))
    except (Misuse, msgspec.MsgspecError):  # raised and handled again when the run reads its input
        return (yield from _take_and_run(flow, record, claim))
    entered = yield from limits.enter(flow.runtime, arguments, begins=claim.attempt == 0)
    if isinstance(entered, Full):
        yield from postpone(flow.runtime.store, record, entered.seconds)
        return Suspended("waits for its turn", None)
    return (yield from holding(flow.runtime, entered.holds, _take_and_run(flow, record, claim, entered.holds)))


def _take_and_run(flow: Flow, record: Record, claim: Claim, slots: Sequence[HeldClaim] = ()) -> Operation[Ended | None]:
    execution = RunExecution.of_record(flow, record, claim, slots)
    if (yield from execution.take(Found(record, record.due_at or record.updated_at))) is not None:
        return None
    return (yield from execution.run())


def _limited_by(flow: Flow, limits: FlowLimits, record: Record, work: RunState) -> Operation[dict[str, Any]]:
    """Return the arguments that limits depend on, typed as a caller's own. A large input is read only if needed."""
    return (yield from flow.inputs.unpack(flow.runtime.store, record.at, work)) if limits.by_key else {}


# -- log lines -----------------------------------------------------------------------------------


def _log_end(ended: Ended, where: Sequence[str]) -> None:
    match ended:
        case Finished():
            log.info("done")
        case RunFailed(Cancelled() as error, undone):
            log.warning("%s; %s", error, undone or "it had done nothing")
        case RunFailed(error):
            _log_failure(error)
        case Superseded(error):
            log.info("dropped: version %s of %s came after %s", error.version, error.object, error.newest)
        case Suspended(why, _):
            log.info("parked: %s", why)
        case HandedBack(error):
            log.warning("given back after %s", type(error).__name__)
        case _:
            look = suggested_command(*where, "review", "show", about_var.get().run)
            trace = None if isinstance(ended.error, TwiceproofError) else ended.error
            log.warning("waits for a person: %s; %s", ended.reason.rstrip("."), look, exc_info=trace)


def _log_failure(error: BaseException) -> None:
    """Log the step's own error, if it is known: its traceback leads to the user's code."""
    where, own = "", error
    if isinstance(error, StepFailed) and error.__cause__ is not None:
        where, own = f" in {error.data['step']}", error.__cause__
    trace = None if isinstance(own, TwiceproofError) else own
    log.error("failed%s with %s: %s", where, type(own).__name__, " ".join(str(own).split()), exc_info=trace)


class IncidentScan(DueWork):
    """Reports, when a worker starts, what needs attention already."""

    kind = NOTICE_KIND

    def __init__(self, incidents: Incidents) -> None:
        self._incidents = incidents

    def queues(self) -> list[str]:
        return []

    def prepare(self) -> Operation[None]:
        yield from self._incidents.scan_store()

    def carry_out(self, record: Record) -> Operation[None]:
        yield from ()  # nothing of it falls due
