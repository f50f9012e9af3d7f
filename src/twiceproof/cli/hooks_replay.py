"""`twiceproof hooks replay`: what was kept aside is taken in after all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import Misuse, ResultNotKept
from .failures import NEGATIVE
from .output import show_json, show_table, show_text
from .target import Target, json_option, no_store, tenant_option

if TYPE_CHECKING:
    from ..app import App

__all__ = ["replay"]

HEAD = ("LETTER", "OUTCOME", "RUN OR REASON")
EPILOG = """\b
Examples:
  twiceproof hooks replay shop:app ltr_1f0c2d…
  twiceproof hooks replay shop:app --all --hook stripe
The exit code is 1 if one of them still cannot be taken in; it is then kept.
"""


@click.command(epilog=EPILOG, short_help="Read deliveries again that were kept aside.")
@click.argument("app", metavar="MODULE:APP")
@click.argument("letter", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that were kept aside, the oldest first.")
@click.option("--hook", metavar="NAME", default="", help="With --all: only those of this webhook.")
@tenant_option
@json_option
@no_store
@click.pass_obj
def replay(target: Target, app: str, letter: tuple[str, ...], everything: bool, hook: str) -> None:
    """Read deliveries again that were kept aside, and start what they say.

    They were believed when they came, and are claimed under the same ids: what was taken in meanwhile is a duplicate.
    """
    from .load import load_app

    if bool(letter) is everything:
        raise Misuse("Name the letters to replay, or say --all; list them with: twiceproof hooks letters")
    with load_app(app) as found:
        tenants = found.of(target.given_tenant) if target.given_tenant else found
        names = letter or _all(tenants, hook)
        shapes = [shape for name in names for shape in _replayed(tenants, name)]
    if target.json:
        show_json({"replayed": shapes})
    elif not shapes:
        show_text("Nothing was kept aside.")
    else:
        show_table(HEAD, [(s["letter"], s["outcome"], s["run"] or s["reason"]) for s in shapes])
    if any(shape["outcome"] in ("refused", "poison", "mismatch", "busy", "failed") for shape in shapes):
        raise click.exceptions.Exit(NEGATIVE)


def _all(app: App, hook: str) -> list[str]:
    from ..doors.letters import letters
    from ..drive import block

    return [letter.id for letter in reversed(block(letters(app.store, app.settings.tenant, hook)))]


def _replayed(app: App, name: str) -> list[dict[str, Any]]:
    """One line for each event in it. What cannot be read does not stop the others."""
    from ..doors.replay import replay_letter
    from ..drive import block

    try:
        admitted = block(replay_letter(app.parts, app.hooks, name))
    except (Misuse, ResultNotKept) as error:
        return [{"letter": name, "event": "", "outcome": "refused", "run": "", "reason": str(error)}]
    return [
        {"letter": name, "event": one.event, "outcome": one.word, "run": one.run, "reason": one.reason}
        for one in admitted
    ]
