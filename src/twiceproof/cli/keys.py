"""`twiceproof keys`: what stored values are sealed with."""

from __future__ import annotations

import click

from .keys_new import new
from .keys_rotate import rotate
from .keys_status import status

__all__ = ["keys"]


EPILOG = """\b
Examples:
  export TWICEPROOF_KEYS="$(twiceproof keys new)"
  twiceproof keys status
"""


@click.group("keys", epilog=EPILOG, short_help="Seal stored values: make a key, count rows per key, seal anew.")
def keys() -> None:
    """What stored values are sealed with: TWICEPROOF_KEYS, the key that seals first."""


keys.add_command(new)
keys.add_command(status)
keys.add_command(rotate)
