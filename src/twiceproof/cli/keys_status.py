"""`twiceproof keys status`."""

from __future__ import annotations

import click
from msgspec import Struct

from ..flows.history.rotation import keys_in_use
from ..stores.keyring import PLAIN, as_keyring
from .ledger import opened
from .output import show_json, show_table, show_text
from .target import Target, target_options

__all__ = ["status"]

HEAD = ("KEY", "ROWS", "HERE")
EPILOG = """\b
Examples:
  twiceproof keys status
  twiceproof keys status --json
"""


class Row(Struct, frozen=True):
    """A key id, "" for plain rows; how many rows it seals; and whether it is here: "current", "opens", "missing".

    Plain rows are "-", or "refused" where the keys say sealed-only.
    """

    key: str
    rows: int
    here: str


@click.command("status", epilog=EPILOG, short_help="Count rows per key.")
@target_options
@click.pass_obj
def status(target: Target) -> None:
    """Count rows per key id. A key without rows can be taken away. Exit code 1 where a row cannot be opened."""
    keyring = as_keyring(target.keys)
    known = keyring.ids if keyring else ()
    with opened(target) as store:
        counts = keys_in_use(store)
    names = dict.fromkeys([*known, *counts])
    plain = keyring is None or keyring.plain
    rows = [Row(name, counts.get(name, 0), _here(name, known, plain=plain)) for name in names]
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
