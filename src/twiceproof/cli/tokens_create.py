"""`twiceproof tokens create`."""

from __future__ import annotations

import click

from ..drive import block
from ..errors import Misuse
from ..keys.duration import seconds
from ..server.principal import GRANTS, Scope
from ..server.tokens import create_token
from .ledger import opened, require_ledger, scheme_of
from .output import show_json, show_pairs, show_text
from .target import Target, target_options
from .token_shape import shown_time, token_shape

__all__ = ["create"]

EPILOG = """\b
Examples:
  twiceproof tokens create n8n --scope ingest --scope read
  twiceproof tokens create acme-site --tenant acme --scope ingest --expires 90d
  twiceproof --store sqlite:///shop.db tokens create ops --scope admin
  TOKEN=$(twiceproof tokens create ci --scope admin --json | jq -r .token)
"""


@click.command(epilog=EPILOG)
@click.argument("name")
@click.option(
    "--scope", "scopes", type=click.Choice([scope.value for scope in GRANTS]), multiple=True, required=True,
    help="What it may do; several times for several. admin is all of them.",
)  # fmt: skip
@click.option("--expires", metavar="TIME", help="For how long it is good: 90d. Default: until it is revoked.")
@target_options
@click.pass_obj
def create(target: Target, name: str, scopes: tuple[str, ...], expires: str | None) -> None:
    """Make a token for a tenant (--tenant). It is shown once: only its hash is kept.

    From the first token on, every route but health and webhooks needs one. Point to the server's own ledger
    (--store): servers on another do not know it.
    """
    if scheme_of(target.url) == "memory":
        raise Misuse("A memory:// ledger lives and dies with its own process; point to the server's with --store URL.")
    if target.is_default:  # a mistaken ledger would be made here, and the server would stay open to everybody
        require_ledger(target.url)
    lasts = None if expires is None else seconds(expires, name="expires")
    with opened(target, create=True) as store:  # the first token may come before the first claim
        secret, token = block(create_token(store, name, target.tenant, [Scope(scope) for scope in scopes], lasts))
    if target.json:
        show_json({**token_shape(token), "token": secret})
        return
    show_pairs([("token", secret), ("id", token.id), ("name", token.name), ("tenant", token.tenant),
                ("scopes", " ".join(token.scopes)), ("expires", shown_time(token.expires_at))])  # fmt: skip
    show_text("Keep it now: it cannot be shown again. Callers send it as  Authorization: Bearer TOKEN")
