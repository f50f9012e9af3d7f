"""`twiceproof mcp`: the ledger for programs that speak the Model Context Protocol, over standard input and output."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import Misuse
from ..operations import block
from .target import LedgerTarget, opened, read_private, target_options

if TYPE_CHECKING:
    from ..server.tokens import Principal
    from ..stores.base import Store

__all__ = ["mcp"]


EPILOG = """\b
Examples:
  twiceproof mcp
  twiceproof --store postgresql://db/app mcp --token @agent.token
Tools that read are always available. Tools that act need a token: settle_run and decide_approval
one with the scope approve, retry_run and cancel_run one with run. Every act is recorded; list_acts shows them.
"""


@click.command(epilog=EPILOG)
@click.option("--token", metavar="@FILE", help="Act as the API token in this private file. Default: read-only.")
@target_options
@click.pass_obj
def mcp(target: LedgerTarget, token: str | None) -> None:
    """Serve the ledger to agents over the Model Context Protocol.

    Started by the agent's program. It ends with that program.
    """
    from ..app.app import App
    from ..server.agent_tools import AgentTools, mcp_server

    with opened(target) as store, App(store, tenant=target.tenant) as app:
        mcp_server(AgentTools(app, *_caller(store, target, token))).run("stdio")


def _caller(store: Store, target: LedgerTarget, token: str | None) -> tuple[Principal, str]:
    """Return the caller, and the hash of its token. Without a token, there are no tools that act."""
    from ..server.tokens import anonymous, find_token, hash_of, principal_of

    if token is None:
        return anonymous(target.tenant), ""
    if not token.startswith("@"):
        raise Misuse("--token takes @FILE: every user of this machine can read a token on the command line.")
    digest = hash_of(read_private(Path(token[1:]), "--token"))
    found = block(find_token(store, digest))
    if found is None or found.tenant != target.tenant:
        raise Misuse(
            f"The token is not valid for the tenant {target.tenant}; create one: twiceproof tokens create NAME"
        )
    return principal_of(found), digest
