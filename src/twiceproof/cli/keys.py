"""Keys new|status|rotate."""

from __future__ import annotations

import os
import time
from base64 import b64encode

import click
from msgspec import Struct, structs

from ..flows.history.key_rotation import keys_in_use
from ..flows.history.key_rotation import rotate as rotate_all
from ..stores.encryption import PLAIN, as_keyring
from .output import Progress, show_json, show_table, show_text
from .target import LedgerTarget, load_record_kinds, opened, target_options

__all__ = ["keys", "new", "rotate", "status"]


NEW_EPILOG = """\b
Examples:
  export TWICEPROOF_KEYS="$(twiceproof keys new)"
  export TWICEPROOF_KEYS="$(twiceproof keys new) $TWICEPROOF_KEYS"   rotate
"""


@click.command("new", epilog=NEW_EPILOG, short_help="Make a key.")
@target_options
@click.pass_obj
def new(target: LedgerTarget) -> None:
    """Make a key: an id made of today's date, and 256 random bits. It is printed and kept nowhere."""
    name = f"k{time.strftime('%Y%m%d', time.gmtime())}-{os.urandom(2).hex()}"
    key = f"{name}:{b64encode(os.urandom(32)).decode()}"
    if target.json:
        show_json({"key": key})
    else:
        show_text(key)


ROTATE_EPILOG = """\b
Examples:
  twiceproof keys rotate
  twiceproof keys rotate --json
"""


@click.command("rotate", epilog=ROTATE_EPILOG, short_help="Seal everything anew with the current key.")
@target_options
@click.pass_obj
def rotate(target: LedgerTarget) -> None:
    """Seal everything anew with the current key, beside whoever is at work. What is held is left to its holder.

    Exit code 1 where something is left: say it again later. What does not open is named, and left as it is.
    """
    load_record_kinds()
    with opened(target) as store, Progress("sealing", quiet=target.json) as bar:
        done = rotate_all(store, bar.show)
    if target.json:
        show_json({**structs.asdict(done), "left": done.left})
    else:
        show_text(f"{done.sealed} sealed anew, {done.current} were already.")
        if done.left > done.shut:
            show_text(
                f"{done.left - done.shut} are held or were just written; say it again later: twiceproof keys rotate"
            )
        if done.shut:
            show_text(f"{done.shut} do not open, as told above; restore them from a backup.")
    if done.left:
        raise click.exceptions.Exit(1)


HEAD = ("KEY", "ROWS", "HERE")
STATUS_EPILOG = """\b
Examples:
  twiceproof keys status
  twiceproof keys status --json
"""


class EncryptionRow(Struct, frozen=True):
    """A key id, "" for plain rows; how many rows it seals; and whether it is here: "current", "opens", "missing".

    Plain rows are "-", or "refused" where the keys say sealed-only.
    """

    key: str
    rows: int
    here: str


@click.command("status", epilog=STATUS_EPILOG, short_help="Count rows per key.")
@target_options
@click.pass_obj
def status(target: LedgerTarget) -> None:
    """Count rows per key id. A key without rows can be taken away. Exit code 1 where a row cannot be opened."""
    keyring = as_keyring(target.keys)
    known = keyring.ids if keyring else ()
    load_record_kinds()
    with opened(target) as store:
        counts = keys_in_use(store)
    names = dict.fromkeys([*known, *counts])
    plain = keyring is None or keyring.plain
    rows = [EncryptionRow(name, counts.get(name, 0), _here(name, known, plain=plain)) for name in names]
    if target.json:
        show_json({"keys": rows})
    elif rows:
        show_table(HEAD, [(row.key or "(plain)", row.rows, row.here) for row in rows])
    else:
        show_text("No rows, and no keys.")
    if any(row.here in ("missing", "refused") for row in rows):
        raise click.exceptions.Exit(1)


def _here(name: str, known: tuple[str, ...], *, plain: bool) -> str:
    if name == PLAIN:
        return "-" if plain else "refused"
    if name not in known:
        return "missing"
    return "current" if name == known[0] else "opens"


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
