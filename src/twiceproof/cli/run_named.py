"""The run that a command is about: by its id, or as FLOW/KEY."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..claims.claim import Claim, claim_of, validate_name
from ..claims.pieces import run_or_claim
from ..claims.states import is_expired
from ..drive import block
from ..errors import Misuse
from ..flows.history.run_shape import MoveShape
from ..flows.history.runs import Filter, address_of_run, list_runs
from ..records import Address
from ..stores.base import Store
from .failures import NotFound
from .shell import command
from .target import Target

__all__ = ["RUN_HELP", "moves_shape", "named_run"]

RUN_HELP = "RUN is a run's id, FLOW/KEY, or a KEY that only one run has."
MOST_NAMED = 5


def named_run(target: Target, store: Store, name: str) -> Address:
    """Where it is. A guarded function's claim is no run."""
    try:
        at = address_of_run(target.tenant, name)
    except Misuse:  # no id, and no flow's name before a slash
        return _by_key(target, store, name, None)
    found = block(run_or_claim(store, at.space))
    if found.record is None or is_expired(found.record, found.now):
        return _by_key(target, store, name, None)
    return at if found.record.at == at else _by_key(target, store, name, claim_of(found.record))


def _by_key(target: Target, store: Store, key: str, claim: Claim | None) -> Address:
    """The one run that has this key. Read from the first claim to the last: an id, or FLOW/KEY, is found at once."""
    which = Filter(validate_name("tenant", target.tenant), key=key)
    runs = block(list_runs(store, which, limit=MOST_NAMED + 1)).runs
    if len(runs) == 1:
        return address_of_run(target.tenant, f"{runs[0].flow}/{runs[0].key}")
    if runs:
        names = ", ".join(f"{run.flow}/{run.key}" for run in runs[:MOST_NAMED])
        more = ", …" if len(runs) > MOST_NAMED else ""
        raise NotFound(f"Several runs have this key; name one of them as FLOW/KEY: {names}{more}")
    if claim is not None:
        show = command(target, "claims", "show", about=(claim.operation, claim.key))
        raise NotFound(f"This is a claim, not a run; look at it with: {show}")
    listed = command(target, "runs", "list", "--state", "all")
    raise NotFound(f"There is no such run; name it by its id, as FLOW/KEY, or by its key. List them with: {listed}")


def moves_shape(target: Target, moves: Sequence[MoveShape]) -> list[dict[str, Any]]:
    """What is safe to do next: why, and what to type ("" where nothing is)."""
    return [{"why": move.why, "command": command(target, *move.words) if move.words else ""} for move in moves]
