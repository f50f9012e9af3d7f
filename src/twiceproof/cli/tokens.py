"""`twiceproof tokens`: the group. Each command has a file of its own."""

from __future__ import annotations

import click

from .tokens_create import create
from .tokens_list import list_
from .tokens_revoke import revoke

__all__ = ["tokens"]


EPILOG = """\b
Examples:
  twiceproof tokens create n8n --scope ingest --scope read
  twiceproof tokens list
  twiceproof tokens revoke n8n
"""


@click.group(epilog=EPILOG)
def tokens() -> None:
    """Make, list and revoke what callers of the server show."""


for _command in (create, list_, revoke):
    tokens.add_command(_command)
