"""Finds what `module:attr` on the command line names: the user's own app."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from inspect import getattr_static
from pathlib import Path
from traceback import extract_tb
from types import ModuleType

import click

from ..app.app import NEW_LEDGER, App
from ..claims.once import Once
from ..errors import Misuse, TwiceproofError
from ..flows.flow import Flow
from .output import clean

__all__ = ["load", "load_app"]


def load_app(name: str, *, tell: bool = True) -> App:
    """The app that is meant. `tell`: of a ledger that was made for it; a command that logs does so in its log."""
    module, found = _load(name, "an app", "shop:app for app in shop.py", _apps_in)
    if not isinstance(found, App):
        raise Misuse(f"{name} is {_a(type(found).__name__)}, not an App; {_apps_in(module)}")
    if tell and found.new_ledger is not None:
        click.echo(NEW_LEDGER % clean(str(found.new_ledger)), err=True)
    return found


def load(name: str) -> object:
    """Whatever is meant: a flow, for one."""
    return _load(name, "a flow", "shop:sync_order for sync_order in shop.py", _flows_in)[1]


def _load(name: str, what: str, example: str, others: Callable[[ModuleType], str]) -> tuple[ModuleType, object]:
    """Imported with the current directory first. What the module itself raises is told in one line, with its place."""
    module_name, colon, attr = name.partition(":")
    if not (module_name.strip("./") and colon and attr):
        raise Misuse(f"{name!r} does not name {what}; write it as module:attr, for example {example}.")
    if "/" in module_name or module_name.startswith("."):
        raise _a_file(module_name, attr)
    module = _imported(module_name, attr)
    found: object = module
    for part in attr.split("."):
        if not hasattr(found, part):
            raise Misuse(f"{module_name} has no {attr!r}; {others(module)}")
        found = getattr(found, part)
    return module, found


def _a_file(name: str, attr: str) -> Misuse:
    """Below the current directory the module is named by its path; elsewhere one has to go there first."""
    path = Path(name.removesuffix(".py"))
    if path.is_absolute() or ".." in path.parts:
        return Misuse(f"Name the module, not its file; go to {path.parent} first, and say {path.name}:{attr}")
    return Misuse(f"Name the module, not its file: {'.'.join(path.parts).lstrip('.')}:{attr}")


def _imported(name: str, attr: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path[:1]:
        sys.path.insert(0, here)
    try:
        with redirect_stdout(sys.stderr), _held_back():  # what it prints meanwhile is no part of the command's answer
            return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise _broken(name, error) from error  # it is there, and misses something itself
        if name.endswith(".py"):
            raise _a_file(name, attr) from None
        raise Misuse(
            f"There is no module {name!r} in {here}, nor elsewhere on Python's path; go to its directory first."
        ) from None
    except TwiceproofError as error:
        error.add_note(f"({_place_of(error)})")  # it says by itself what to do, but not where
        raise
    except (Exception, SystemExit) as error:  # of which Python would say nothing, and end with its number
        raise _broken(name, error) from error


@contextmanager
def _held_back() -> Iterator[None]:
    """That a ledger is new is told by the command, when it is known how: its lines may have to be JSON."""
    told = logging.getLogger("twiceproof.ledger")
    before, told.disabled = told.disabled, True
    try:
        yield
    finally:
        told.disabled = before


def _broken(name: str, error: BaseException) -> Misuse:
    """The line of the user's own that led there: our frames would bury it. Python shows all of it to who asks."""
    if isinstance(error, SyntaxError):
        place, said = f"{error.filename}:{error.lineno}", f"SyntaxError: {error.msg}"
    else:
        place, said = _place_of(error), f"{type(error).__name__}: {error}".removesuffix(": ")
    move = "install it" if isinstance(error, ModuleNotFoundError) else "correct it"
    return Misuse(
        f"{name} cannot be imported ({place}: {said}); {move}, or see all of it with: python -c 'import {name}'"
    )


def _place_of(error: BaseException) -> str:
    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen ")]
    last = ([frame for frame in frames if frame.filename.startswith(str(Path.cwd()))] or frames)[-1]
    return f"{last.filename}:{last.lineno}"


def _apps_in(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, App)]
    if not names:
        return f'there is no App in {module.__name__}; make one there: app = App("sqlite:///shop.db")'
    return f"try {' or '.join(f'{module.__name__}:{name}' for name in names)}."


def _flows_in(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if _is_flow(value)]
    if not names:
        return f"nothing in {module.__name__} is under @app.flow or @app.once."
    return f"try {' or '.join(f'{module.__name__}:{name}' for name in names)}."


def _is_flow(value: object) -> bool:
    """Looked at from outside: a module may hold things that cannot be asked for an attribute yet, or do something."""
    return isinstance(getattr_static(value, "flow", None), Flow) or isinstance(
        getattr_static(value, "once", None), Once
    )


def _a(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
