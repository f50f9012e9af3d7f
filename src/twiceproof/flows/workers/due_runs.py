"""The duty for runs: whatever is queued, has slept long enough, or was left behind by a holder that died."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...claims.claim import RUN, claim_of
from ...claims.run_ids import shown_id
from ...errors import Cancelled, Misuse, StepFailed, TwiceproofError
from ...operations import Operation, await_
from ...records import Record
from ...safe_text import suggested_command
from ...stores.base import Store
from ..calls import resume_run
from ..engine.exits import Ended, Finished, HandedBack, RunFailed, Superseded, Suspended
from ..engine.run_states import work_of
from ..flow import NORMAL, Flow
from ..runtime import postpone
from .due_work import DueWork
from .log import About, about_var

__all__ = ["DueRuns"]


log = logging.getLogger("twiceproof.work")

NOT_OURS = 60.0  # a run that was handed out and not taken is left alone for so long


class DueRuns(DueWork):
    """Serves the flows of one rank, in the versions that are here. Runs of other versions are never asked for."""

    kind = RUN

    def __init__(
        self, store: Store, flows: Mapping[str, Flow], tenants: Callable[[], Iterable[str]], rank: int = NORMAL
    ) -> None:
        self.rank = rank
        self._store = store
        self._flows = flows
        self._tenants = tenants
        self._made_of: tuple[list[Flow], list[str]] = ([], [])
        self._queues: list[str] = []

    def queues(self) -> list[str]:
        """The same list while nothing has changed: each look asks for it, and there may be thousands of tenants."""
        flows = [flow for flow in self._flows.values() if flow.rank == self.rank]
        made_of = flows, list(self._tenants()) if flows else []
        if made_of != self._made_of:
            self._made_of = made_of
            self._queues = [queue for tenant in made_of[1] for flow in flows for queue in flow.of(tenant).queues]
        return self._queues

    def awaits(self, record: Record) -> bool:
        return self._flow(record).drive is await_

    def _flow(self, record: Record) -> Flow:
        tenant = record.queue.partition("/")[0]
        for flow in self._flows.values():
            if record.queue in flow.of(tenant).queues:
                return flow.of(tenant)
        raise Misuse(f"No flow is declared for {record.queue}; declare it, or leave its runs to workers that have it.")

    def carry_out(self, record: Record) -> Operation[None]:
        flow = self._flow(record)
        ended = yield from resume_run(flow, record)
        if ended is None:  # somebody else has it; if nobody does, it must not come round at once for ever
            yield from postpone(self._store, record, NOT_OURS)
        else:
            _tell(ended, flow.parts.where)

    def about(self, record: Record) -> About:
        claim = claim_of(record)
        run = shown_id(record.at)
        return About(work_of(claim).correlation or run, run, claim.operation, claim.key)


def _tell(ended: Ended, where: Sequence[str]) -> None:
    match ended:
        case Finished():
            log.info("done")
        case RunFailed(Cancelled() as error, undone):
            log.warning("%s; %s", error, undone or "it had done nothing")
        case RunFailed(error):
            _tell_failure(error)
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


def _tell_failure(error: BaseException) -> None:
    """As the step's own error, where it is known; the traceback leads to what is broken. Ours would lead to us."""
    where, own = "", error
    if isinstance(error, StepFailed) and error.__cause__ is not None:
        where, own = f" in {error.data['step']}", error.__cause__
    trace = None if isinstance(own, TwiceproofError) else own
    log.error("failed%s with %s: %s", where, type(own).__name__, " ".join(str(own).split()), exc_info=trace)
