"""`twiceproof hooks`: the group."""

from __future__ import annotations

import click

from .hooks_letters import letters
from .hooks_list import list_
from .hooks_replay import replay
from .hooks_test import test

__all__ = ["hooks"]


EPILOG = """\b
Examples:
  twiceproof hooks list shop:app                 which senders, and is their secret set?
  twiceproof hooks letters                       what could not be taken in, and why
"""


@click.group(epilog=EPILOG, short_help="Look at webhooks, try one out, replay what was kept aside.")
def hooks() -> None:
    """Look at webhooks, try one out, and replay what could not be taken in."""


for command in (list_, test, letters, replay):
    hooks.add_command(command)
