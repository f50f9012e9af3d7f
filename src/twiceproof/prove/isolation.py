"""Runs something in a forked child and brings its answer back: what it does to memory is gone with it."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import TypeVar

import msgspec

from .guard.guard import Guard

__all__ = ["Vanished", "apart"]

T = TypeVar("T")


class Vanished(RuntimeError):
    """The child ended without an answer."""


def apart(
    work: Callable[[], T], kind: type[T], *, seconds: float = 60.0, aloud: bool = True, guard: Guard | None = None
) -> T:
    """The answer travels as JSON. A child that takes too long is ended. `guard` says where it may connect to.

    What it prints is no part of the parent's own answer: it goes to stderr, or nowhere unless `aloud`.
    """
    sys.stdout.flush()  # or every child would have the same lines to write
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of the parent are not needed in the child
        child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(work, writing, seconds, aloud, guard)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as pipe:
            text = pipe.read() if guard is None else guard.follow(pipe.fileno())
    except BaseException:  # somebody ends the proof: the play must not go on changing what is being put back
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    if not text:
        raise Vanished(f"the play ended without an answer ({_ending(status)})")
    return msgspec.json.decode(text, type=kind)


def _answer(work: Callable[[], object], writing: int, seconds: float, aloud: bool, guard: Guard | None) -> None:
    """Never returns: the parent's stack is not the child's to unwind."""
    code = 1
    _print_elsewhere(aloud)
    gc.freeze()  # a collection would touch, and so copy, every page of the parent's memory
    try:
        for number in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        if guard is not None:
            guard.enter()
        text = msgspec.json.encode(work())
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(text)
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, it is told here or nowhere
        traceback.print_exc(file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _print_elsewhere(aloud: bool) -> None:
    """Whether it prints by way of Python, or in a program that it starts."""
    if not aloud:
        logging.disable()  # what a hundred plays have to say about having been killed
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError):  # a process need not have a stderr
        os.dup2(2 if aloud else nowhere, 1)
    sys.stdout = sys.stderr if aloud else os.fdopen(nowhere, "w")


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return "it took too long" if number == signal.SIGALRM else f"signal {number}"
    return f"exit code {os.WEXITSTATUS(status)}"
