"""Starting a run: the body is the flow's input, its key names the run, and a second start is told of the first."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from ...claims.claim import DONE, FAILED, REVIEW, RUN, claim_of, run_address, space_of_run
from ...claims.results import unpack
from ...claims.states import is_expired
from ...drive import Operation
from ...errors import Misuse
from ...flows.flow import Flow
from ...flows.history.runs import require_run
from ...flows.tenancy import own_run
from ...observe.told import tell
from ...records import Address, Found
from ..reply import Reply, json_reply
from .request_key import Begun, begin_once

__all__ = ["LONGEST_WAIT", "Start", "StartedRun", "start_run"]

LONGEST_WAIT = 60.0
LONGEST_PAUSE = 1.0
ENDS = (DONE, FAILED, REVIEW)


class Start(Struct, frozen=True):
    """What a caller asks for. `request` is its Idempotency-Key, `starter` who it is."""

    input: Raw
    request: str = ""
    wait: float = 0.0
    starter: str = ""
    correlation: str = ""

    @property
    def own_request(self) -> str:
        """A caller's key is its own: another's, with another body, is no mismatch. A token's name has no slash."""
        return f"{self.starter}/{self.request}"


class StartedRun(Struct, frozen=True):
    """`started`: by this very request. `result` and `error` are there once it has ended."""

    run: str
    flow: str
    key: str
    state: str
    started: bool
    result: Raw | None = None
    result_kept: bool = False
    error: str = ""


def start_run(flow: Flow, start: Start) -> Operation[Reply]:
    """202 for a run that goes on, 200 for one that has ended or was there before."""
    begin = _begin(flow, start)
    begun = (
        (yield from begin_once(flow, start.own_request, start.input, begin)) if start.request else (yield from begin)
    )
    if isinstance(begun, Reply):
        return begun
    at = own_run(flow.policy.tenant, run_address(space_of_run(begun.run)))
    tell("runs", "new" if begun.first else "duplicate", key=_key_of(at), run=begun.run)
    found = yield from _awaited(flow, at, min(start.wait, LONGEST_WAIT))
    shape = yield from _shape(flow, begun, found, at)
    status = 202 if begun.first and shape.state not in ENDS else 200
    return json_reply(status, shape, [("location", f"/v1/runs/{begun.run}")])


def _begin(flow: Flow, start: Start) -> Operation[Begun]:
    args, kwargs = _arguments(flow, start.input)
    try:
        handle, first = yield from flow.begin(
            args, kwargs, heard=True, plain=True, starter=start.starter, correlation=start.correlation
        )
    except Misuse:
        if not _is_wrapped(flow, args):
            raise
        (name,) = flow.inputs.names
        raise Misuse(
            f"{flow.name} takes one thing, and the body is that; send the value of {name!r} by itself."
        ) from None
    except TypeError as error:
        names = ", ".join(flow.inputs.names)
        raise Misuse(
            f"{flow.name} takes ({names}), and the body does not fit: {error}; send a field for each."
        ) from None
    if handle.at.kind != RUN:
        raise Misuse(
            f"{flow.name} for {_key_of(handle.at)!r} was claimed by a guarded function of this name, and is no run; "
            f"look at it with: GET /v1/claims/{flow.name}/KEY"
        )
    return Begun(handle.id, first)


def _arguments(flow: Flow, given: Raw) -> tuple[tuple[object, ...], dict[str, object]]:
    """Passed whole to a single parameter, otherwise spread by name."""
    value, names = msgspec.json.decode(given), flow.inputs.names
    if not names and value in (None, {}):
        return (), {}
    if len(names) == 1:
        return (value,), {}
    if not isinstance(value, dict):
        raise Misuse(f"{flow.name} takes ({', '.join(names)}), and the body is no object; send one with these fields.")
    return (), value


def _is_wrapped(flow: Flow, args: tuple[object, ...]) -> bool:
    """Written as for several parameters: an object around the one thing that the flow takes."""
    return len(args) == 1 and isinstance(args[0], dict) and list(args[0]) == flow.inputs.names


def _awaited(flow: Flow, at: Address, seconds: float) -> Operation[Found]:
    """As it is when it has ended, or when the caller's patience has."""
    store, clock = flow.parts.store, flow.parts.clock
    until = clock.monotonic() + seconds
    while True:
        found = yield from store.read(at)
        left = until - clock.monotonic()
        if left <= 0 or found.record is None or found.record.state in ENDS:
            return found
        yield from store.pause(at.space, min(left, LONGEST_PAUSE))


def _shape(flow: Flow, begun: Begun, found: Found, at: Address) -> Operation[StartedRun]:
    key = _key_of(at)
    if found.record is None or is_expired(found.record, found.now):  # begun long ago, and forgotten since
        return StartedRun(begun.run, flow.name, key, "forgotten", begun.first)
    record = require_run(found)
    claim = claim_of(record)
    result = yield from unpack(flow.parts.store, at, claim.result, claim.spill)
    error = (
        f"{claim.fault.type}: {claim.fault.message}" if claim.fault else claim.reason if record.state == REVIEW else ""
    )
    return StartedRun(
        begun.run, flow.name, key, record.state, begun.first, Raw(result) if result else None, bool(result), error
    )  # fmt: skip


def _key_of(at: Address) -> str:
    return at.space.split("/", 2)[2]
