"""Programming errors in a flow's own body: the code is repaired, and the run goes on. Nothing is undone by itself."""

from __future__ import annotations

import sys
from pathlib import Path

from ..claims.verdict import fault_of

__all__ = ["is_mistake", "mistake_text"]

# What Python raises about code that is wrong. A class of somebody's own that descends from one is raised on purpose.
MISTAKES = (
    AttributeError, TypeError, NameError, KeyError, IndexError, ImportError, AssertionError, NotImplementedError,
    ZeroDivisionError, RecursionError, SyntaxError,
)  # fmt: skip


def is_mistake(error: BaseException) -> bool:
    """Of several at once, one is enough: undone because of the others, the run could not go on after a fix."""
    if isinstance(error, BaseExceptionGroup):
        return any(is_mistake(one) for one in error.exceptions)
    return isinstance(error, MISTAKES) and type(error).__module__.partition(".")[0] in sys.stdlib_module_names


def mistake_text(error: BaseException) -> str:
    """What it is, and the line that raised it."""
    fault, trace = fault_of(error), error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})" if trace is not None else ""
    return f"{fault.type}: {fault.message}{where}"
