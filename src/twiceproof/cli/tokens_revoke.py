"""`twiceproof tokens revoke`."""

from __future__ import annotations

import click

from ..drive import block
from ..server.tokens import revoke_token
from .ledger import opened
from .output import show_json, show_text
from .target import Target, target_options
from .token_shape import token_shape

__all__ = ["revoke"]

EPILOG = """\b
Examples:
  twiceproof tokens revoke tok_1f0c9b6ad2e45a77
  twiceproof tokens revoke n8n
"""


@click.command(epilog=EPILOG)
@click.argument("token", metavar="ID|NAME")
@target_options
@click.pass_obj
def revoke(target: Target, token: str) -> None:
    """Make a token worthless, within three seconds on every server."""
    with opened(target) as store:
        revoked = block(revoke_token(store, token))
    if target.json:
        show_json(token_shape(revoked))
    else:
        show_text(f"Revoked {revoked.name} ({revoked.id}) of {revoked.tenant}; servers refuse it within 3 s.")
