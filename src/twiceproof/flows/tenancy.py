"""Whose a record is. Ids of runs and approvals can be made up: in an app they lead only to what is its tenant's own."""

from __future__ import annotations

from ..claims.claim import run_address, space_of_run
from ..errors import Misuse, NoSuchWait
from ..records import Address

__all__ = ["own_approval", "own_run", "own_space"]


def own_run(tenant: str, at: Address) -> Address:
    if not _is_own(tenant, at):
        raise Misuse("There is no such run here; list them with: twiceproof runs list", tenant=tenant)
    return at


def own_space(tenant: str, run: str) -> str:
    """Where everything of a run lies, by its id."""
    return own_run(tenant, run_address(space_of_run(run))).space


def own_approval(tenant: str, at: Address) -> Address:
    if not _is_own(tenant, at):
        raise NoSuchWait("There is no such approval here; list them with: twiceproof approvals list")
    return at


def _is_own(tenant: str, at: Address) -> bool:
    """A tenant's name has no slash."""
    return at.space.partition("/")[0] == tenant
