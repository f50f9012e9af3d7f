"""The run that a command is about: by its id, or as FLOW/KEY."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..claims.claim import claim_of
from ..claims.states import is_expired
from ..flows.history.run_shape import MoveShape
from ..flows.history.runs import address_of_run
from ..records import Address
from ..stores.base import Store
from .failures import NotFound
from .shell import command
from .target import Target

__all__ = ["RUN_HELP", "moves_shape", "named_run"]

RUN_HELP = "RUN is a run's id, or FLOW/KEY."


def named_run(target: Target, store: Store, name: str) -> Address:
    """Where it is. A guarded function's claim is no run."""
    at = address_of_run(target.tenant, name)
    found = store.read(at).block()
    if found.record is None or is_expired(found.record, found.now):
        runs = command(target, "runs", "list", "--state", "all")
        raise NotFound(f"There is no such run; name it by its id, or as FLOW/KEY. List them with: {runs}")
    claim = claim_of(found.record)
    if not claim.work:
        show = command(target, "claims", "show", about=(claim.operation, claim.key))
        raise NotFound(f"This is a claim, not a run; look at it with: {show}")
    return at


def moves_shape(target: Target, moves: Sequence[MoveShape]) -> list[dict[str, Any]]:
    """What is safe to do next: why, and what to type ("" where nothing is)."""
    return [{"why": move.why, "command": command(target, *move.words) if move.words else ""} for move in moves]
