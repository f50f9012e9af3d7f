"""A signal's exception: raised by a handler, as by the soft time limits of job runners, wherever the main thread is.

It is for the caller who was there. Work that is done for many must neither take it for its own error and go on, nor
tell it to the others.
"""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Iterator
from types import CodeType
from typing import Any

__all__ = ["is_a_signals", "let_signals_through"]


def is_a_signals(error: BaseException) -> bool:
    """Whether a signal's handler is on the way to where it was raised."""
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = {code for number in signal.valid_signals() for code in _code_of(signal.getsignal(number))}
    return any(code in handlers for code in _way(error))


def let_signals_through(error: BaseException) -> None:
    """For whoever takes an error for a broken connection. A time limit may well be told by a TimeoutError, and a driver
    makes an error of its own of that.
    """
    inner: BaseException | None = error
    while inner is not None:
        if is_a_signals(inner):
            raise inner
        inner = _made_of(inner)


def _made_of(error: BaseException) -> BaseException | None:
    """What was caught on the way to where this one was raised; not what a caller of ours was just dealing with."""
    inner, step = error.__context__, error.__traceback__
    while inner is not None and inner.__traceback__ is not None and step is not None:
        if step.tb_frame is inner.__traceback__.tb_frame:
            return inner
        step = step.tb_next
    return None


def _way(error: BaseException) -> Iterator[CodeType]:
    step = error.__traceback__
    while step is not None:
        yield step.tb_frame.f_code
        step = step.tb_next


def _code_of(handler: Any) -> Iterator[CodeType]:
    """Of a function, a method, a partial, or an object that is called."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    for place in (handler, type(handler).__dict__.get("__call__")):
        code = getattr(place, "__code__", None)
        if isinstance(code, CodeType):
            yield code
