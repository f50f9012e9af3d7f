"""Tokens create|list|revoke."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click
from msgspec import structs

from ..errors import Misuse
from ..keys.duration import seconds
from ..operations import block
from ..server.tokens import GRANTS, ApiToken, Scope, create_token, list_tokens, revoke_token
from .output import show_json, show_pairs, show_table, show_text
from .target import LedgerTarget, opened, require_ledger, scheme_of, target_options

__all__ = ["create", "list_", "revoke", "shown_time", "token_shape", "tokens"]


def token_shape(token: ApiToken) -> dict[str, Any]:
    return structs.asdict(token)


def shown_time(at: float | None) -> str:
    return "never" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")


CREATE_EPILOG = """\b
Examples:
  twiceproof tokens create n8n --scope ingest --scope read
  twiceproof tokens create acme-site --tenant acme --scope ingest --expires 90d
  twiceproof --store sqlite:///shop.db tokens create ops --scope admin
  TOKEN=$(twiceproof tokens create ci --scope admin --json | jq -r .token)
"""


@click.command(epilog=CREATE_EPILOG)
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice([scope.value for scope in GRANTS]),
    multiple=True,
    required=True,
    help="What it may do; several times for several. admin is all of them.",
)
@click.option("--expires", metavar="TIME", help="For how long it is good: 90d. Default: until it is revoked.")
@target_options
@click.pass_obj
def create(target: LedgerTarget, name: str, scopes: tuple[str, ...], expires: str | None) -> None:
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
    show_pairs(
        [
            ("token", secret),
            ("id", token.id),
            ("name", token.name),
            ("tenant", token.tenant),
            ("scopes", " ".join(token.scopes)),
            ("expires", shown_time(token.expires_at)),
        ]
    )
    show_text("Keep it now: it cannot be shown again. Callers send it as  Authorization: Bearer TOKEN")


LIST_EPILOG = """\b
Examples:
  twiceproof tokens list
  twiceproof tokens list --tenant acme --json
"""
HEAD = ("ID", "NAME", "TENANT", "SCOPES", "STATE", "CREATED", "EXPIRES")


@click.command("list", epilog=LIST_EPILOG, short_help="List the tokens, revoked ones too.")
@target_options
@click.pass_obj
def list_(target: LedgerTarget) -> None:
    """List the tokens of all tenants, revoked ones too; with --tenant, those of one."""
    with opened(target) as store:
        found = block(list_tokens(store))
    if target.given_tenant:
        found = [token for token in found if token.tenant == target.tenant]
    if target.json:
        show_json({"tokens": [token_shape(token) for token in found]})
    elif found:
        show_table(
            HEAD,
            [
                (
                    t.id,
                    t.name,
                    t.tenant,
                    " ".join(t.scopes),
                    t.state,
                    shown_time(t.created_at),
                    shown_time(t.expires_at),
                )
                for t in found
            ],
        )
    else:
        show_text("No tokens. On loopback everybody may do everything; make one with: twiceproof tokens create")


REVOKE_EPILOG = """\b
Examples:
  twiceproof tokens revoke tok_1f0c9b6ad2e45a77
  twiceproof tokens revoke n8n
"""


@click.command(epilog=REVOKE_EPILOG)
@click.argument("token", metavar="ID|NAME")
@target_options
@click.pass_obj
def revoke(target: LedgerTarget, token: str) -> None:
    """Make a token worthless, within three seconds on every server."""
    with opened(target) as store:
        revoked = block(revoke_token(store, token))
    if target.json:
        show_json(token_shape(revoked))
    else:
        show_text(f"Revoked {revoked.name} ({revoked.id}) of {revoked.tenant}; servers refuse it within 3 s.")


EPILOG = """\b
Examples:
  twiceproof tokens create n8n --scope ingest --scope read
  twiceproof tokens list
  twiceproof tokens revoke n8n
"""


@click.group(epilog=EPILOG)
def tokens() -> None:
    """Make, list and revoke what callers of the server show."""


for _command in (create, list_, revoke):
    tokens.add_command(_command)
