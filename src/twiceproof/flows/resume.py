"""Resuming: a worker goes on with a run that the store handed out as due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..claims.claim import Claim, claim_of
from ..claims.hold import Hold
from ..claims.states import Ask
from ..drive import Operation
from ..errors import Misuse
from ..records import Found, Record
from .ending import Asleep, Ended
from .flow import Flow
from .limits.limits import Full, Limits
from .limits.slots import holding
from .limits.succession import LOOK_AGAIN, must_wait
from .run import Taken
from .run_states import RunAsk
from .work import Work, work_of
from .workers.postpone import postpone

__all__ = ["resume_run"]

PATIENCE = 0.2  # a worker waits no longer for a retry: others wait for it


def resume_run(flow: Flow, record: Record) -> Operation[Ended | None]:
    """What became of it. None: somebody else has it."""
    store, claim = flow.parts.store, claim_of(record)
    flow.results.prepare()
    if (yield from must_wait(store, claim)):
        yield from postpone(store, record, LOOK_AGAIN)
        return Asleep("waits for the run before it", None)
    if flow.limits is None:
        return (yield from _go_on(flow, claim, record))
    try:
        arguments = yield from _limited_by(flow, flow.limits, record, work_of(claim))
    except (Misuse, msgspec.MsgspecError):  # met again, and dealt with, when it is taken
        return (yield from _go_on(flow, claim, record))
    entered = yield from flow.limits.enter(flow.parts, arguments, begins=claim.attempt == 0)
    if isinstance(entered, Full):
        yield from postpone(store, record, entered.seconds)
        return Asleep("waits for its turn", None)
    return (yield from holding(flow.parts, entered.holds, _go_on(flow, claim, record, entered.holds)))


def _limited_by(flow: Flow, limits: Limits, record: Record, work: Work) -> Operation[dict[str, Any]]:
    """What its limits look at: typed, as a caller's own arguments are. A large input is read only if need be."""
    return (yield from flow.inputs.unpack(flow.parts.store, record.at, work)) if limits.by_key else {}


def _go_on(flow: Flow, claim: Claim, record: Record, slots: Sequence[Hold] = ()) -> Operation[Ended | None]:
    run = RunAsk(_ask(flow, claim, record), claim.work, flow.versions, picked=record.version)
    taken = yield from flow.take(run, PATIENCE, Found(record, record.due_at or record.updated_at))
    if not isinstance(taken, Taken):
        return None
    taken.slots = slots if flow.order is not None else ()
    return (yield from flow.run(taken))


def _ask(flow: Flow, claim: Claim, record: Record) -> Ask:
    policy = flow.policy
    return Ask(
        record.at, flow.name, claim.key, flow.parts.owner(), policy.lease, claim.tenant, "", claim.run,
        claim.link, policy.repeat, where=policy.where,
    )  # fmt: skip
