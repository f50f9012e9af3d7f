"""Asks before something is done that cannot be undone."""

from __future__ import annotations

import sys

import click

from .clean import clean
from .failures import NEGATIVE, NotConfirmed

__all__ = ["confirm"]


def confirm(question: str, *, yes: bool) -> None:
    """Returns if it may be done. A script cannot be asked: it has to say --yes itself."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise NotConfirmed("This cannot be undone and there is no terminal to ask on; nothing was done. Say --yes.")
    if not click.confirm(clean(question), err=True):
        click.echo("Nothing was done.", err=True)
        raise click.exceptions.Exit(NEGATIVE)
