"""`twiceproof encryption new-key|status|rotate`: the keys that stored values are encrypted with."""

from __future__ import annotations

import os
import time
from base64 import b64encode

import click
from msgspec import Struct

from ..flows.history.key_rotation import RotationCount, keys_in_use
from ..flows.history.key_rotation import rotate as rotate_all
from ..stores.encryption import PLAIN, as_keyring
from .output import NEGATIVE, Progress, counted, show_json, show_table, show_text
from .target import LedgerTarget, command, load_record_kinds, opened, target_options

__all__ = ["encryption", "new_key", "rotate", "status"]


NEW_KEY_EPILOG = """\b
Examples:
  export TWICEPROOF_KEYS="$(twiceproof encryption new-key)"
To rotate, put a new key first, then re-encrypt:
  export TWICEPROOF_KEYS="$(twiceproof encryption new-key) $TWICEPROOF_KEYS"
  twiceproof encryption rotate
"""


@click.command("new-key", epilog=NEW_KEY_EPILOG, short_help="Create a random key and print it.")
@target_options
@click.pass_obj
def new_key(target: LedgerTarget) -> None:
    """Create a random 256-bit key and print it; it is stored nowhere.

    The key's id is made of today's date and two random bytes.
    """
    name = f"k{time.strftime('%Y%m%d', time.gmtime())}-{os.urandom(2).hex()}"
    key = f"{name}:{b64encode(os.urandom(32)).decode()}"
    if target.json:
        show_json({"key": key})
    else:
        show_text(key)


ROTATE_EPILOG = """\b
Examples:
  twiceproof encryption rotate
  twiceproof encryption rotate --json
Exit codes: 1 if some rows still have another key: run it again later.
"""


@click.command("rotate", epilog=ROTATE_EPILOG, short_help="Re-encrypt every row with the current key.")
@target_options
@click.pass_obj
def rotate(target: LedgerTarget) -> None:
    """Re-encrypt every row with the current key, while workers continue.

    Rows of a claim that is held are left to its holder. Rows that cannot be decrypted are reported and left as they
    are.
    """
    load_record_kinds()
    with opened(target) as store, Progress("re-encrypted", quiet=target.json) as bar:
        total = rotate_all(store, bar.show)
    if target.json:
        show_json(_rotation_shape(total))
    else:
        _show_rotation(target, total)
    if total.left:
        raise click.exceptions.Exit(NEGATIVE)


def _rotation_shape(total: RotationCount) -> dict[str, int]:
    return {
        "reencrypted": total.sealed,
        "already_current": total.current,
        "held": total.held,
        "changed": total.changed,
        "unreadable": total.shut,
        "remaining": total.left,
    }


def _show_rotation(target: LedgerTarget, total: RotationCount) -> None:
    show_text(f"{counted(total.sealed, 'row')} re-encrypted; {total.current:,} already had the current key.")
    if total.left > total.shut:
        again = command(target, "encryption", "rotate")
        show_text(f"{counted(total.left - total.shut, 'row')} held or just changed; run it again later: {again}")
    if total.shut:
        show_text(f"{counted(total.shut, 'row')} cannot be decrypted, as listed above; restore from a backup.")


HEAD = ("KEY ID", "ROWS", "STATUS")
UNENCRYPTED = "(unencrypted)"
STATUS_EPILOG = """\b
Examples:
  twiceproof encryption status
  twiceproof encryption status --json
A key without rows can be removed from TWICEPROOF_KEYS.
Exit codes: 1 if a row cannot be decrypted here.
"""


class EncryptionRow(Struct, frozen=True):
    """A key id ("" for unencrypted rows), how many rows it encrypts, and what the keys given here can do with them.

    `status` is "current" (encrypts new rows), "decrypts" or "missing"; of unencrypted rows "accepted" or "refused".
    """

    key_id: str
    rows: int
    status: str


@click.command("status", epilog=STATUS_EPILOG, short_help="Count rows per key.")
@target_options
@click.pass_obj
def status(target: LedgerTarget) -> None:
    """Count rows per key, and show which keys are missing here."""
    keyring = as_keyring(target.keys)
    known = keyring.ids if keyring else ()
    load_record_kinds()
    with opened(target) as store:
        counts = keys_in_use(store)
    plain = keyring is None or keyring.plain
    names = dict.fromkeys([*known, *counts])
    rows = [EncryptionRow(name, counts.get(name, 0), _status(name, known, plain=plain)) for name in names]
    if target.json:
        show_json({"keys": rows})
    elif rows:
        show_table(HEAD, [(row.key_id or UNENCRYPTED, row.rows, row.status) for row in rows])
    else:
        show_text("The ledger is empty, and TWICEPROOF_KEYS is not set.")
    if any(row.status in ("missing", "refused") for row in rows):
        raise click.exceptions.Exit(NEGATIVE)


def _status(name: str, known: tuple[str, ...], *, plain: bool) -> str:
    if name == PLAIN:
        return "accepted" if plain else "refused"
    if name not in known:
        return "missing"
    return "current" if name == known[0] else "decrypts"


EPILOG = """\b
Examples:
  export TWICEPROOF_KEYS="$(twiceproof encryption new-key)"
  twiceproof encryption status
Stored values are encrypted with the first key of TWICEPROOF_KEYS, and
decrypted with any of them.
"""


@click.group("encryption", epilog=EPILOG)
def encryption() -> None:
    """Create, count and rotate encryption keys."""


for _command in (new_key, status, rotate):
    encryption.add_command(_command)
