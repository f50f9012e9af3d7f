"""`twiceproof version`."""

from __future__ import annotations

import platform

import click

from ..version import __version__
from .output import show_json, show_text
from .target import LedgerTarget, json_option

__all__ = ["version"]


@click.command()
@json_option
@click.pass_obj
def version(target: LedgerTarget) -> None:
    """Show the version of twiceproof and of Python."""
    python = platform.python_version()
    if target.json:
        show_json({"twiceproof": __version__, "python": python})
    else:
        show_text(f"twiceproof {__version__} (Python {python})")
