"""`twiceproof tokens list`."""

from __future__ import annotations

import click

from ..drive import block
from ..server.tokens import list_tokens
from .ledger import opened
from .output import show_json, show_table, show_text
from .target import Target, target_options
from .token_shape import shown_time, token_shape

__all__ = ["list_"]

EPILOG = """\b
Examples:
  twiceproof tokens list
  twiceproof tokens list --tenant acme --json
"""
HEAD = ("ID", "NAME", "TENANT", "SCOPES", "STATE", "CREATED", "EXPIRES")


@click.command("list", epilog=EPILOG, short_help="List the tokens, revoked ones too.")
@target_options
@click.pass_obj
def list_(target: Target) -> None:
    """List the tokens of all tenants, revoked ones too; with --tenant, those of one."""
    with opened(target) as store:
        found = block(list_tokens(store))
    if target.given_tenant:
        found = [token for token in found if token.tenant == target.tenant]
    if target.json:
        show_json({"tokens": [token_shape(token) for token in found]})
    elif found:
        show_table(HEAD, [
            (t.id, t.name, t.tenant, " ".join(t.scopes), t.state, shown_time(t.created_at), shown_time(t.expires_at))
            for t in found
        ])  # fmt: skip
    else:
        show_text("No tokens. On loopback everybody may do everything; make one with: twiceproof tokens create")
