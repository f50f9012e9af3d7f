"""`twiceproof keys new`."""

from __future__ import annotations

import os
import time
from base64 import b64encode

import click

from .output import show_json, show_text
from .target import Target, target_options

__all__ = ["new"]

EPILOG = """\b
Examples:
  export TWICEPROOF_KEYS="$(twiceproof keys new)"
  export TWICEPROOF_KEYS="$(twiceproof keys new) $TWICEPROOF_KEYS"   rotate
"""


@click.command("new", epilog=EPILOG, short_help="Make a key.")
@target_options
@click.pass_obj
def new(target: Target) -> None:
    """Make a key: an id made of today's date, and 256 random bits. It is printed and kept nowhere."""
    name = f"k{time.strftime('%Y%m%d', time.gmtime())}-{os.urandom(2).hex()}"
    key = f"{name}:{b64encode(os.urandom(32)).decode()}"
    if target.json:
        show_json({"key": key})
    else:
        show_text(key)
