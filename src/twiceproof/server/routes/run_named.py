"""The run or the claim that a path names, if it is the caller's own."""

from __future__ import annotations

from ...claims.claim import run_address, space_of_run
from ...claims.states import is_expired
from ...doors.reply import problem
from ...drive import Operation
from ...errors import Misuse
from ...flows.tenancy import own_run
from ...records import Address
from ..call import Call, Refused

__all__ = ["place_named", "run_named"]


def place_named(call: Call) -> Address:
    """By its id alone. The same answer for what is not there and for what is somebody else's.

    Where a run would be: a claim of this id is in the same space.
    """
    try:
        return own_run(call.app.settings.tenant, run_address(space_of_run(call.params["name"])))
    except Misuse:
        raise _gone() from None


def run_named(call: Call) -> Operation[Address]:
    """What is there, and is a run."""
    at = place_named(call)
    found = yield from call.app.store.read(at)
    if found.record is None or is_expired(found.record, found.now):
        raise _gone()
    return at


def _gone() -> Refused:
    return Refused(problem(404, "no-such-run", "There is no such run.", next_move="List them: GET /v1/runs"))
