"""Imports the app or flow that `module:attr` on the command line names."""

from __future__ import annotations

import inspect
import logging
import os
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
from ..app.functions import wrapped_flow
from ..claims.once import Once
from ..errors import Misuse, TwiceproofError
from ..flows.flow import Flow
from .output import clean

__all__ = ["find_modules_here", "load", "load_app"]


def load_app(name: str, *, announce: bool = True) -> App:
    """Return the named app, or the one that the named function makes: `def make() -> App`; of a directory, one that has
    the flow files in it.

    `announce`: report a new ledger on stderr; commands that log report it in their log.
    """
    if ":" not in name and Path(name).is_dir():
        found = _app_of_files(Path(name))
    else:
        module, made = _load(name, "an app", "shop:app for app in shop.py", _apps_in)
        made = _made(made)
        if not isinstance(made, App):
            raise Misuse(f"{name} is {_a(type(made).__name__)}, not an App; {_apps_in(module)}")
        found = made
    if announce and found.new_ledger is not None:
        click.echo(NEW_LEDGER % clean(str(found.new_ledger)), err=True)
    return found


def load(name: str) -> object:
    """Return the named object, usually a flow: `module:flow`, or `module:app:flow` by its name in an app."""
    place, colon, flow = name.rpartition(":")
    if colon and ":" in place:
        return _flow_in(load_app(place), flow, place)
    return _load(name, "a flow", "shop:sync_order for sync_order in shop.py", _flows_in)[1]


def _flow_in(app: App, name: str, place: str) -> object:
    if name not in app.flows:
        raise Misuse(f"{place} has no flow {name!r}; it has {', '.join(sorted(app.flows)) or 'none'}.")
    return wrapped_flow(app.flows[name])


def _app_of_files(folder: Path) -> App:
    """An app on the store of the environment (TWICEPROOF_STORE), which starts nothing but releases."""
    from ..declared.flow_files import load_flows  # a late import: it needs PyYAML
    from ..settings import from_environment
    from ..stores.open import anchored

    find_modules_here()
    app = App(anchored(from_environment(os.environ).store, Path.cwd()))
    load_flows(app, folder.resolve(), released=True)
    return app


def find_modules_here() -> None:
    """Let modules of the current directory be imported."""
    here = str(Path.cwd())
    if here not in sys.path[:1]:
        sys.path.insert(0, here)


def _made(found: object) -> object:
    """Call a function that is annotated to return an app. No other function is called: it could do anything."""
    if not inspect.isfunction(found) or _is_flow(found):
        return found
    told = inspect.signature(found)
    if told.parameters or told.return_annotation not in (App, "App", "twiceproof.App"):
        return found
    return found()


def _load(name: str, what: str, example: str, others: Callable[[ModuleType], str]) -> tuple[ModuleType, object]:
    """Import with the current directory first. An error of the module is reported in one line, with its place."""
    module_name, colon, attr = name.partition(":")
    if not (module_name.strip("./") and colon and attr):
        no_folder = "" if colon or what != "an app" else f" There is no directory {name} here, either."
        raise Misuse(f"{name!r} does not name {what}; write it as module:attr, for example {example}.{no_folder}")
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
    """Below the current directory a module is named by its path; for any other, change the directory first."""
    path = Path(name.removesuffix(".py"))
    if path.is_absolute() or ".." in path.parts:
        return Misuse(f"Name the module, not its file; change to {path.parent}, then use {path.name}:{attr}")
    return Misuse(f"Name the module, not its file: {'.'.join(path.parts).lstrip('.')}:{attr}")


def _imported(name: str, attr: str) -> ModuleType:
    find_modules_here()
    here = str(Path.cwd())
    try:
        with redirect_stdout(sys.stderr), _ledger_log_disabled():  # stdout is for the command's own output
            return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise _broken(name, error) from error  # the module exists, and one of its own imports is missing
        if name.endswith(".py"):
            raise _a_file(name, attr) from None
        raise Misuse(
            f"There is no module {name!r} in {here}, nor elsewhere on Python's path; change to its directory first."
        ) from None
    except TwiceproofError as error:
        error.add_note(f"({_place_of(error)})")  # its message has the next move, but not the file and line
        raise
    except (Exception, SystemExit) as error:  # SystemExit would end the command without a message
        raise _broken(name, error) from error


@contextmanager
def _ledger_log_disabled() -> Iterator[None]:
    """The command reports a new ledger itself, once it knows whether its lines have to be JSON."""
    log = logging.getLogger("twiceproof.ledger")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _broken(name: str, error: BaseException) -> Misuse:
    """Name the line of the user's module that failed; the frames of this package would bury it."""
    if isinstance(error, SyntaxError):
        place, message = f"{error.filename}:{error.lineno}", f"SyntaxError: {error.msg}"
    else:
        place, message = _place_of(error), f"{type(error).__name__}: {error}".removesuffix(": ")
    move = "install it" if isinstance(error, ModuleNotFoundError) else "correct it"
    return Misuse(
        f"{name} cannot be imported ({place}: {message}); {move}, or see the traceback: python -c 'import {name}'"
    )


def _place_of(error: BaseException) -> str:
    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen ")]
    last = ([frame for frame in frames if frame.filename.startswith(str(Path.cwd()))] or frames)[-1]
    return f"{last.filename}:{last.lineno}"


def _apps_in(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, App)]
    if not names:
        return f'{module.__name__} has no App; create one there: app = App("sqlite:///shop.db")'
    return f"try {' or '.join(f'{module.__name__}:{name}' for name in names)}."


def _flows_in(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if _is_flow(value)]
    if not names:
        return f"no function in {module.__name__} has @app.flow or @app.once; add one of them."
    return f"try {' or '.join(f'{module.__name__}:{name}' for name in names)}."


def _is_flow(value: object) -> bool:
    """Checked without running code: reading an attribute of a lazy object in the module could fail or do work."""
    return isinstance(getattr_static(value, "flow", None), Flow) or isinstance(
        getattr_static(value, "once", None), Once
    )


def _a(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
