"""Forks: whoever has threads, locks or connections is told of a fork, for as long as it lives.

The interpreter keeps what `os.register_at_fork` is given until its end. One hook each, then, however many apps come and
go: a process that had opened thousands of them would pay for all of them at every fork.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

__all__ = ["at_fork"]

T = TypeVar("T")
Call = Callable[[Any], None]


class _Calls(NamedTuple):
    before: Call | None
    in_parent: Call | None
    in_child: Call


_living: dict[weakref.ref[Any], _Calls] = {}  # in the order of their making


def at_fork(
    one: T,
    *,
    in_child: Callable[[T], None],
    before: Callable[[T], None] | None = None,
    in_parent: Callable[[T], None] | None = None,
) -> None:
    """Each is called with `one`, which it must not keep alive: so a function or a class's method, no bound one."""
    _living[weakref.ref(one, _living.pop)] = _Calls(before, in_parent, in_child)


def _tell(which: Callable[[_Calls], Call | None]) -> None:
    """All of them, whatever befalls one: an error is told by the interpreter, as of any hook."""
    first: BaseException | None = None
    for reference in list(_living):  # no pairs: to make them may set off a collection, and with it shorten the dict
        one, calls = reference(), _living.get(reference)
        call = which(calls) if calls is not None else None
        if one is None or call is None:
            continue
        try:
            call(one)
        except BaseException as error:  # noqa: BLE001 - raised below
            first = first or error
    if first is not None:
        raise first


os.register_at_fork(
    before=lambda: _tell(lambda calls: calls.before),
    after_in_parent=lambda: _tell(lambda calls: calls.in_parent),
    after_in_child=lambda: _tell(lambda calls: calls.in_child),
)
