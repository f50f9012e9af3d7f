"""`twiceproof hooks list`: which senders an app listens to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .failures import NEGATIVE
from .output import show_json, show_table, show_text
from .span import span
from .target import Target, json_option

if TYPE_CHECKING:
    from ..doors.hook import Hook

__all__ = ["list_"]

HEAD = ("PATH", "SOURCE", "FLOW", "TRIES FOR", "KEPT FOR", "SECRET")
EPILOG = """\b
Example:
  twiceproof hooks list shop:app
The exit code is 1 if a webhook has no secret, or forgets events before their
sender gives up. Secrets themselves are never shown.
"""


@click.command("list", epilog=EPILOG, short_help="List the webhooks of an app.")
@click.argument("app", metavar="MODULE:APP")
@json_option
@click.pass_obj
def list_(target: Target, app: str) -> None:
    """List the webhooks of an app: who sends, what it starts, how long it is remembered."""
    from .load import load_app

    with load_app(app) as found:
        shapes = [_shape(hook) for hook in found.hooks.values()]
    if target.json:
        show_json({"hooks": shapes})
    else:
        _show(app, shapes)
    if not all(shape["secret"] and shape["kept_long_enough"] for shape in shapes):
        raise click.exceptions.Exit(NEGATIVE)


def _shape(hook: Hook) -> dict[str, Any]:
    keep = hook.policy.life.keep
    return {
        "name": hook.name,
        "path": f"/hooks/{hook.name}",
        "source": hook.source.name,
        "flow": hook.flow.name,
        "signed": hook.source.signed,
        "deadline": hook.source.deadline,
        "horizon": hook.source.horizon,
        "keep": keep,
        "kept_long_enough": keep is None or keep >= hook.source.horizon,
        "secret": any(hook.secrets()),
    }


def _show(app: str, shapes: Sequence[dict[str, Any]]) -> None:
    if not shapes:
        show_text(f"{app} declares no webhooks; write app.webhook(SOURCE, secret=…, start=…).")
        return
    show_table(HEAD, [_row(shape) for shape in shapes])
    for shape in shapes:
        if not shape["secret"]:
            show_text(f"Nothing that {shape['name']} sends can be believed: set its secret.")
        if not shape["kept_long_enough"]:
            show_text(f"{shape['name']} may come again when its events are forgotten: give it a longer keep=.")


def _row(shape: dict[str, Any]) -> tuple[str, ...]:
    kept = "ever" if shape["keep"] is None else span(shape["keep"])
    secret = "set" if shape["secret"] else "MISSING"
    return shape["path"], shape["source"], shape["flow"], span(shape["horizon"]), kept, secret
