"""`twiceproof keys new`."""

from __future__ import annotations

import os
import time
from base64 import b64encode

import click

from .output import show_text
from .target import target_options

__all__ = ["new"]

EPILOG = """\b
Examples:
  export TWICEPROOF_KEYS="$(twiceproof keys new)"
  export TWICEPROOF_KEYS="$(twiceproof keys new) $TWICEPROOF_KEYS"   rotate
"""


@click.command("new", epilog=EPILOG, short_help="Make a key.")
@target_options
def new() -> None:
    """Make a key: an id made of today's date, and 256 random bits. It is printed and kept nowhere."""
    name = f"k{time.strftime('%Y%m%d', time.gmtime())}-{os.urandom(2).hex()}"
    show_text(f"{name}:{b64encode(os.urandom(32)).decode()}")
