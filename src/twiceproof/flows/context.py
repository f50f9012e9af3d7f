"""Where a call finds itself: in which run, and in which step of it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from msgspec import Struct

from ..drive import await_
from ..errors import Misuse
from .names import effect_key

__all__ = ["Attempt", "Unwind", "attempt_var", "current_attempt", "current_session", "inside_flow", "is_interrupt",
           "plain_session", "session_var"]  # fmt: skip

if TYPE_CHECKING:
    from .session import Session


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
    if session is not None and session.ledger.abreast and session.drive is await_ and _on_a_loop():
        raise Misuse(
            f"{what} is a `def`, called beside others in an `async def` flow: it would hold them all up; make it an "
            f"`async def`, or call it as: await asyncio.to_thread({what}, …)."
        )
    return session


def _on_a_loop() -> bool:
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
