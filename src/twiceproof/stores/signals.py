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

__all__ = ["is_a_signals"]


def is_a_signals(error: BaseException) -> bool:
    """Whether a signal's handler is on the way to where it was raised."""
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = {code for number in signal.valid_signals() for code in _code_of(signal.getsignal(number))}
    return any(code in handlers for code in _way(error))


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
