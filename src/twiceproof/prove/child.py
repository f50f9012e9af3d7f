"""Runs a function in a forked child. What one child had to load, the next ones find loaded."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Collection
from importlib import import_module
from typing import TypeVar

import msgspec
from msgspec import Struct

from ..effects.http_client import prepare_requests
from .network_guard import NetworkGuard

__all__ = ["ChildVanished", "in_child"]


T = TypeVar("T")


class ChildVanished(RuntimeError):
    """The child ended without an answer."""


class ChildAnswer(Struct, frozen=True):
    """What the function returned, and the modules that were imported meanwhile."""

    value: msgspec.Raw
    imported: list[str]


def in_child(
    work: Callable[[], T],
    kind: type[T],
    *,
    seconds: float = 60.0,
    aloud: bool = True,
    guard: NetworkGuard | None = None,
) -> T:
    """Call a function in a forked child and return its answer, which travels as JSON.

    A child that takes too long is killed. `guard` limits its connections. Its output is not the parent's: it goes to
    stderr, or nowhere unless `aloud`.
    """
    sys.stdout.flush()  # or every child would flush the same buffered lines
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child needs none of the parent's threads
        child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(work, writing, seconds, aloud, guard)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as pipe:
            text = pipe.read() if guard is None else guard.follow(pipe.fileno())
    except BaseException:  # the proof is interrupted: the scenario must not go on changing what is being restored
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    if not text:
        raise ChildVanished(f"the scenario's process ended without an answer ({_ending(status)})")
    answer = msgspec.json.decode(text, type=ChildAnswer)
    _import_here(answer.imported)
    return msgspec.json.decode(answer.value, type=kind)


def _answer(work: Callable[[], object], writing: int, seconds: float, aloud: bool, guard: NetworkGuard | None) -> None:
    """Never returns: the child must not unwind the parent's stack."""
    code = 1
    _print_elsewhere(aloud)
    gc.freeze()  # a collection would touch, and so copy, every page of the parent's memory
    try:
        for number in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        if guard is not None:
            guard.enter()
        before = set(sys.modules)
        value = msgspec.Raw(msgspec.json.encode(work()))
        text = msgspec.json.encode(ChildAnswer(value, list(sys.modules.keys() - before)))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(text)
        code = 0
    except BaseException:  # noqa: BLE001 - any error is reported here or nowhere
        traceback.print_exc(file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


HARMLESS = sys.stdlib_module_names | {__name__.partition(".")[0]}  # importing them only defines things
HTTP_CLIENT = "httpcore2"


def _import_here(names: Collection[str]) -> None:
    """Import what a child has imported: otherwise each would do so again, which takes longer than its scenario.

    Not the user's modules: they might connect or start threads, and only a child is guarded.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the child has had them
        for name in names:
            if name.partition(".")[0] in HARMLESS:
                with contextlib.suppress(ImportError):
                    import_module(name)
        if HTTP_CLIENT in names:
            prepare_requests()


def _print_elsewhere(aloud: bool) -> None:
    """Redirect output, also that of started programs."""
    if not aloud:
        logging.disable()  # a hundred scenarios would each report that they were killed
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError):  # a process may have no stderr
        os.dup2(2 if aloud else nowhere, 1)
    sys.stdout = sys.stderr if aloud else os.fdopen(nowhere, "w")


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return "it took too long" if number == signal.SIGALRM else f"signal {number}"
    return f"exit code {os.WEXITSTATUS(status)}"
