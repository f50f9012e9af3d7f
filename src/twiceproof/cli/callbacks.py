"""`twiceproof callbacks`: the group. Each command has a file of its own."""

from __future__ import annotations

import click

from .callbacks_deliver import deliver
from .callbacks_list import list_

__all__ = ["callbacks"]


EPILOG = """\b
Examples:
  twiceproof callbacks list
  twiceproof callbacks deliver take_payment/order:10492 paid --payload '{"amount": 70}'
"""


@click.group(epilog=EPILOG, short_help="Look at callbacks that runs wait for, and deliver one.")
def callbacks() -> None:
    """Look at the callbacks that runs wait for, and deliver one by hand."""


for _command in (list_, deliver):
    callbacks.add_command(_command)
