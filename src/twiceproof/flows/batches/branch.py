"""A branch: one of several calls that a run carries out beside each other. It stops for itself, not for the others."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from ..stop import Stop

if TYPE_CHECKING:
    from ..session import Session

__all__ = ["Branch", "are_siblings", "branch_var"]


class Branch:
    """Its path is the same in every replay: which gathering, and which call of it ("2.1", nested "2.1/1.3")."""

    __slots__ = ("alone", "gatherings", "path", "session", "stop")

    def __init__(self, session: Session, path: str, *, alone: bool = False) -> None:
        self.session = session
        self.path = path
        self.alone = alone  # one step and nothing else: nothing of this branch comes before it
        self.stop: Stop | None = None
        self.gatherings = 0

    @property
    def place(self) -> str:
        """Where its steps are, for the ledger. Of a batch, an item's number depends on what is left to do."""
        return f"{self.path.rpartition('.')[0]}.*" if self.alone else self.path


branch_var: ContextVar[Branch | None] = ContextVar("twiceproof_branch", default=None)


def are_siblings(one: str, other: str) -> bool:
    """Whether two paths are beside each other: which of them comes first is chance."""
    for left, right in zip(one.split("/"), other.split("/"), strict=False):
        if left != right:
            return bool(left and right) and left.split(".")[0] == right.split(".")[0]
    return False
