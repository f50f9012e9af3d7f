"""A duty: a kind of work that falls due in the store, and that a worker carries out."""

from __future__ import annotations

from typing import Protocol

from ...drive import Operation
from ...records import Record
from .lease import LONGEST
from .log import About

__all__ = ["Duty"]


class Duty(Protocol):
    """Derive from it, and append an instance to `app.duties`."""

    kind: str  # of the records it serves
    rank: int = 1  # a duty of a lower rank is looked after first; those of one rank take turns

    def queues(self) -> list[str]:
        """Where it looks. Asked before each look: what is declared later is served too."""
        raise NotImplementedError

    def flow_of(self, queue: str) -> str:
        """Whose flow's work is in one of its queues: a worker may serve some of them only."""
        return queue.partition("/")[2].rpartition("@")[0]

    def prepare(self) -> Operation[None]:
        """Before a worker begins: put into the store what is to fall due."""
        yield from ()

    def carry_out(self, record: Record) -> Operation[None]:
        """Do what a record that has fallen due asks for. It is hidden from other workers for a few seconds: take it by
        its version, or it is handed out again."""
        raise NotImplementedError

    def put_off(self, record: Record) -> float:
        """For how many seconds a record that could not be carried out is left alone."""
        return LONGEST

    def about(self, record: Record) -> About:
        """Which run the log's lines are about while it is carried out, if it is one."""
        return About()

    def awaits(self, record: Record) -> bool:
        """Whether it must be carried out on an event loop."""
        return False
