"""Current run, step and branch; correlation id; guarded calls inside a flow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from msgspec import Struct

from ...claims.run_ids import shown_run
from ...errors import Misuse
from ...keys import validate_key
from ...operations import await_
from .exits import Stop
from .step_identity import effect_key

if TYPE_CHECKING:
    from .session import Session

__all__ = [
    "Attempt",
    "Branch",
    "Unwind",
    "are_siblings",
    "attempt_var",
    "branch_var",
    "correlation",
    "current_attempt",
    "current_session",
    "given",
    "giving",
    "inside_flow",
    "is_interrupt",
    "is_on_loop",
    "plain_session",
    "session_var",
]


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


class Attempt(Struct, frozen=True):
    """A step that is being carried out: its place in the ledger and what it may tell the outside."""

    space: str
    step: str
    starts: int

    @property
    def effect_key(self) -> str:
        """Made when it is asked for: most steps need none."""
        return effect_key(self.space, self.step)


class Unwind(BaseException):
    """Leaves the flow's function without an end: it waits, or a person must decide. `except Exception` lets it pass."""


def is_interrupt(error: BaseException) -> bool:
    """Whether somebody told the process, or this task of it, to stop."""
    return not isinstance(error, Exception | Unwind)


session_var: ContextVar[Session | None] = ContextVar("twiceproof_run", default=None)
attempt_var: ContextVar[Attempt | None] = ContextVar("twiceproof_step", default=None)


def current_attempt() -> Attempt | None:
    return attempt_var.get()


def current_session() -> Session | None:
    """The run whose function is calling. None inside a step: what a step calls is part of that step."""
    session = session_var.get()
    if session is None or attempt_var.get() is not None:
        return None
    if not session.open:
        raise Misuse(
            "This run has ended or is parked, but something it started is still going on; wait for tasks and threads "
            "in the flow itself, with app.gather."
        )
    return session


def plain_session(what: str) -> Session | None:
    """The same for a `def`. Beside awaited calls, on their loop, it would wait for a turn that only they can give."""
    session = current_session()
    if session is not None and session.ledger.abreast and session.drive is await_ and is_on_loop():
        raise Misuse(
            f"{what} is a `def`, called beside others in an `async def` flow: it would hold them all up; make it an "
            f"`async def`, or call it as: await asyncio.to_thread({what}, …)."
        )
    return session


def is_on_loop() -> bool:
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def inside_flow(what: str) -> Session:
    session = current_session()
    if session is None:
        where = "a step" if attempt_var.get() is not None else "no flow"
        raise Misuse(f"{what} was called from {where}; call it in the body of a function under @app.flow.")
    return session


_given: ContextVar[str] = ContextVar("twiceproof_correlation", default="")


@contextmanager
def giving(correlation: str) -> Iterator[None]:
    if _of_run():
        raise Misuse("A run has its correlation id from its start; give it around the call that starts the run.")
    token = _given.set(validate_key(correlation))
    try:
        yield
    finally:
        _given.reset(token)


def given() -> str:
    """What was given around this call, if anything."""
    return _given.get()


def correlation() -> str:
    """That of the run that is calling, also for runs that it starts; outside of runs, what was given."""
    return _of_run() or _given.get()


def _of_run() -> str:
    session = session_var.get()
    if session is None or not session.open:
        return ""
    return session.work.correlation or shown_run(session.claim.run)
