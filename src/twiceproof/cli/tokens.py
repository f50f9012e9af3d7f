"""`twiceproof tokens create|list|revoke`, `twiceproof open`: API tokens of the server, and a login by one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click
from msgspec import structs

from ..errors import Misuse
from ..keys.duration import seconds
from ..operations import block
from ..server.tokens import (
    GRANTS,
    LOGIN_LASTS,
    ApiToken,
    Scope,
    any_token,
    create_login,
    create_token,
    list_tokens,
    revoke_token,
)
from .output import show_json, show_pairs, show_table, show_text
from .prompts import login_name
from .target import LedgerTarget, opened, require_ledger, scheme_of, target_options

__all__ = ["create", "list_", "open_", "revoke", "shown_time", "token_shape", "tokens"]


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
    help="What the token may do; admin includes all others.",
)
@click.option("--expires", metavar="TIME", help="Lifetime, such as 90d. Default: until it is revoked.")
@target_options
@click.pass_obj
def create(target: LedgerTarget, name: str, scopes: tuple[str, ...], expires: str | None) -> None:
    """Create an API token for a tenant, and print it once.

    Only the token's hash is stored. Once there is a token, every route but health and webhooks requires one. --store
    must name the ledger of the server.
    """
    if scheme_of(target.url) == "memory":
        raise Misuse(
            "A memory:// ledger exists only within its own process; name the server's ledger with --store URL."
        )
    if target.is_default:  # otherwise a new ledger would be created here, and the server would stay unprotected
        require_ledger(target.url)
    lasts = None if expires is None else seconds(expires, name="expires")
    with opened(target, create=True) as store:  # a token may be created before the first claim
        given = [Scope(scope) for scope in scopes]
        secret, token = block(create_token(store, name, target.tenant, given, lasts, by=login_name()))
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
    show_text("Save the token now: it is not shown again. Clients send it as: Authorization: Bearer TOKEN")


LIST_EPILOG = """\b
Examples:
  twiceproof tokens list
  twiceproof tokens list --tenant acme --json
"""
HEAD = ("ID", "NAME", "TENANT", "SCOPES", "STATE", "CREATED", "EXPIRES")


@click.command("list", epilog=LIST_EPILOG)
@target_options
@click.pass_obj
def list_(target: LedgerTarget) -> None:
    """List API tokens, including revoked ones.

    Lists the tokens of all tenants, or with --tenant those of one.
    """
    with opened(target) as store:
        found = block(list_tokens(store))
    if target.given_tenant:
        found = [token for token in found if token.tenant == target.tenant]
    if target.json:
        show_json({"tokens": [token_shape(token) for token in found]})
    elif found:
        show_table(HEAD, [_row(token) for token in found])
    else:
        show_text("No tokens: a server accepts requests from its own machine only, unless started with --open.")
        show_text("To create one: twiceproof tokens create NAME --scope SCOPE")


def _row(token: ApiToken) -> tuple[str, ...]:
    times = shown_time(token.created_at), shown_time(token.expires_at)
    return (token.id, token.name, token.tenant, " ".join(token.scopes), token.state, *times)


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
    """Revoke an API token."""
    with opened(target) as store:
        revoked = block(revoke_token(store, token, by=login_name()))
    if target.json:
        show_json(token_shape(revoked))
    else:
        show_text(f"Revoked {revoked.name} ({revoked.id}) of {revoked.tenant}; all servers refuse it within 3 s.")


OPEN_EPILOG = """\b
Examples:
  twiceproof open ann
  twiceproof open ann --url https://automation.example.com --store postgresql://db/app
"""
AT = "http://127.0.0.1:8000"


@click.command("open", epilog=OPEN_EPILOG)
@click.argument("token", metavar="ID|NAME", required=False)
@click.option("--url", default=AT, show_default=True, help="Address of the server whose dashboard is opened.")
@target_options
@click.pass_obj
def open_(target: LedgerTarget, token: str | None, url: str) -> None:
    """Print a link that logs in to the dashboard once, as a token.

    The link is good for one minute and one login. The session ends with its token. While no token exists, no login is
    needed, and the address is printed.
    """
    with opened(target) as store:
        if token is None and block(any_token(store)):
            raise Misuse("Name the token to log in as: twiceproof open NAME; list them: twiceproof tokens list")
        secret = "" if token is None else block(create_login(store, token))
    link = f"{url.rstrip('/')}/login?link={secret}" if secret else f"{url.rstrip('/')}/"
    if target.json:
        show_json({"url": link, "seconds": LOGIN_LASTS if secret else None})
    else:
        show_text(link)


EPILOG = """\b
Examples:
  twiceproof tokens create n8n --scope ingest --scope read
  twiceproof tokens list
  twiceproof tokens revoke n8n
"""


@click.group(epilog=EPILOG)
def tokens() -> None:
    """Create, list and revoke API tokens."""


for _command in (create, list_, revoke):
    tokens.add_command(_command)
