"""Guarded functions and flows that a flow calls: steps of it that guard themselves."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from msgspec import structs

from ..claims.claim import QUEUED, REVIEW, WAITING, body_of, claim_of, space_of_run
from ..drive import Operation, await_, block
from ..records import Address, Record, Replace
from ..stores.base import Store
from .context import current_session, plain_session, session_var
from .engine import Plan
from .repeat import SAFE
from .retry import Retry
from .step import Step
from .stop import INNER_REVIEW, WAITS_FOR_RUN
from .work import queue_of, work_of

__all__ = ["guarding", "parent_of_new_run", "state_of", "wake_parent"]

# What the inner claim or run protects is never repeated by asking again: the outer one may ask as often as it likes.
ASK_AGAIN = Plan(SAFE, Retry(attempts=1_000, first="1s", most="1m", within="30d"))


def guarding(
    function: Callable[..., Any], name: str, key: Callable[..., str], call: Callable[..., Operation[Any]]
) -> Callable[..., Any]:  # fmt: skip
    """`function` as it is called by everybody: through `call`, and in a flow as a step of that flow."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def alone(*args: Any, **kwargs: Any) -> Any:
            return await await_(call(args, kwargs))

        step = Step(alone, ASK_AGAIN, name=name, own_id=key, guards_itself=True)

        @functools.wraps(function)
        async def awaiting(*args: Any, **kwargs: Any) -> Any:
            session = current_session()
            return await await_(call(args, kwargs) if session is None else session.step(step, args, kwargs))

        return awaiting

    @functools.wraps(function)
    def plainly(*args: Any, **kwargs: Any) -> Any:
        return block(call(args, kwargs))

    inner = Step(plainly, ASK_AGAIN, name=name, own_id=key, guards_itself=True)

    @functools.wraps(function)
    def blocking(*args: Any, **kwargs: Any) -> Any:
        session = plain_session(name)
        return block(call(args, kwargs) if session is None else session.step(inner, args, kwargs))

    return blocking


def parent_of_new_run() -> str:
    """The run in whose step a run is begun, or nothing."""
    session = session_var.get()
    return session.claim.run if session is not None and session.open else ""


def wake_parent(store: Store, run: str) -> Operation[None]:
    """A run that waits for another goes on when that one has ended; also if both waited for the same person."""
    record = (yield from store.read(_address(run))).record
    again = _woken(record) if record is not None else None
    if again is not None:
        yield from store.write(again)


def state_of(store: Store, run: str) -> Operation[str]:
    """Empty for one that is not here: it may be another app's, in a store of its own."""
    record = (yield from store.read(_address(run))).record
    return record.state if record is not None else ""


def _address(run: str) -> Address:
    return Address(space_of_run(run), "claim", "self")


def _woken(record: Record) -> Replace | None:
    claim = claim_of(record)
    if record.state == WAITING and claim.reason.startswith(WAITS_FOR_RUN):
        return Replace(record.at, None, WAITING, version=record.version, queue=record.queue, due_in=0.0)
    if record.state == REVIEW and INNER_REVIEW in claim.reason:
        queue = queue_of(claim.tenant, claim.operation, work_of(claim).version)
        body = body_of(structs.replace(claim, reason=""))
        return Replace(record.at, body, QUEUED, version=record.version, draw=True, queue=queue, due_in=0.0)
    return None
