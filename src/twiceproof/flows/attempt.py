"""One attempt at a step: the user's own function, called where it can ask which step it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from ..drive import Call, Operation, Raised, Returned
from ..errors import NotDone
from .calling import Calling
from .context import Attempt, attempt_var
from .entry import Note
from .step import Step
from .timeout import Place, limited
from .transactions.joined import Joined, attempt_joined

if TYPE_CHECKING:
    from .session import Session

__all__ = ["attempt", "place_of"]


def attempt(
    session: Session, calling: Calling, note: Note, record: Callable[[Session, Calling, Note, Any], Any]
) -> Operation[Returned | Raised | Joined]:  # fmt: skip
    """`record` says what is written about a result, for a step that writes it in its own transaction."""
    token = attempt_var.set(Attempt(session.space, calling.name, note.starts))
    try:
        if calling.step.transaction is not None:
            return (yield from attempt_joined(session, calling, partial(record, session, calling, note)))
        finding: Returned | Raised = yield Call(_work(session, calling))
    finally:
        attempt_var.reset(token)
    return finding


def place_of(session: Session, name: str) -> Place:
    """What names a step's attempts in this process, whichever app of it they belong to."""
    return session.work.born, session.space, name


def _work(session: Session, calling: Calling) -> Callable[[], Any]:
    step = calling.step
    if step.plan.timeout is not None:
        function = step.function if step.is_async else partial(_plain, step)
        return limited(function, step.plan.timeout, calling.args, calling.kwargs, place_of(session, calling.name))
    if step.is_async:
        return lambda: step.function(*calling.args, **calling.kwargs)
    return lambda: _plain(step, *calling.args, **calling.kwargs)


def _plain(step: Step, /, *args: Any, **kwargs: Any) -> Any:
    value = step.function(*args, **kwargs)
    if type(value) is CoroutineType:
        value.close()  # work that has not begun: recorded as done, it would be lost
        raise NotDone(f"{step.name} is a def that returns a coroutine; make it an `async def`.", final=True)
    return value
