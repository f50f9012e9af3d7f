"""The approval that a command is about: by its id, or as FLOW/KEY where the run asks for one thing."""

from __future__ import annotations

from ..errors import Misuse
from ..flows.history.runs import address_of_run
from ..flows.waits.approval import KIND, OPEN, approval_id
from ..stores.base import Store
from .failures import NotFound
from .shell import command
from .target import Target

__all__ = ["APPROVAL_HELP", "named_approval"]

APPROVAL_HELP = "APPROVAL is an approval's id, or FLOW/KEY where that run asks for one thing."
MOST = 100


def named_approval(target: Target, store: Store, name: str) -> str:
    """Its id. What is still open comes first: a run may have asked for other things before."""
    if "/" not in name:
        return name
    asked = store.scan(KIND, space=address_of_run(target.tenant, name).space, limit=MOST).block().records
    meant = [record for record in asked if record.state == OPEN] or asked
    if not meant:
        listed = command(target, "approvals", "list")
        raise NotFound(f"{name} has asked for no approval; list what waits for one with: {listed}")
    if len(meant) > 1:
        several = ", ".join(f"{approval_id(record.at)} ({record.at.key})" for record in meant)
        raise Misuse(f"{name} asks for several things; name one by its id: {several}")
    return approval_id(meant[0].at)
