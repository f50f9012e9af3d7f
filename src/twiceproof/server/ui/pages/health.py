"""Health of the store and of this server, and the tokens that open it: for the operator."""

from __future__ import annotations

from ....errors import Misuse
from ....inbound.reply import Reply
from ....operations import await_
from ....stores.base import Finding
from ...routes.health import health_report
from ...tokens import ApiToken, Scope, list_tokens, revoke_token
from .. import listing as ui
from ..dashboard import PageRequest, PageSpec, refused
from ..formatting import href
from ..forms import FormFields, FormOutcome

__all__ = ["PAGES", "finding_row", "token_row"]

FINDINGS = tuple(ui.Column(word) for word in ("Level", "What", "Found", "Advice"))
SERVER = tuple(ui.Column(word) for word in ("What", "Value"))
EXAMINED = ("The store is being examined", "A large one takes some seconds. Open this page again.", "")
NOTE = "The store is examined at most every five minutes for this page; the command below does it at once."
TOKENS = tuple(ui.Column(word) for word in ("State", "Name", "Id", "Scopes", "Tenant", "Made", "Expires"))
NO_TOKENS = (
    "No token exists",
    "Everyone who can reach this server on this machine is the operator. Before a proxy or a tunnel comes, make one:",
)
MAKE_ONE = ("tokens", "create", "NAME", "--scope", "admin")


def finding_row(one: Finding) -> ui.ListingRow:
    return ui.ListingRow((ui.state(one.level), ui.text(one.name), ui.text(one.found), ui.text(one.advice)), name=1)


async def health(page: PageRequest) -> Reply:
    findings = await page.dashboard.examination.answer()
    report = await health_report(page.call, findings or ())
    about = [
        ("This server", "ready" if report.ready else "not ready"),
        ("Version", report.version),
        ("Store", report.store),
        ("Writes that land together", f"{report.batch_limit:,}"),
        ("Lists by age", "yes" if report.newest_first else "no: this store lists by key"),
    ]
    lists = [
        ui.Listing("Store", FINDINGS, [finding_row(one) for one in report.findings], EXAMINED, note=NOTE),
        ui.Listing("Server", SERVER, [ui.ListingRow((ui.text(name), ui.text(value))) for name, value in about]),
    ]
    return page.listing("Health", lists, ("doctor",), "/v1/health")


def token_row(one: ApiToken, now: float) -> ui.ListingRow:
    state = one.state_at(now)
    name = ui.link(one.name, href("tokens", one.id)) if state == "live" else ui.text(one.name)
    return ui.ListingRow(
        (
            ui.state(state),
            name,
            ui.code(one.id),
            ui.text(", ".join(one.scopes)),
            ui.text(one.tenant),
            ui.when(one.created_at),
            ui.when(one.expires_at),
        ),
        name=1,
    )


async def tokens(page: PageRequest) -> Reply:
    found = await await_(list_tokens(page.store))
    rows = [token_row(one, page.now) for one in reversed(found)]
    return page.listing(
        "Tokens",
        ui.Listing("Tokens", TOKENS, rows, (*NO_TOKENS, page.command(*MAKE_ONE))),
        ("tokens", "list"),
        "/v1/tokens",
    )


async def token(page: PageRequest) -> Reply:
    name = page.param("id")
    one = next((one for one in await await_(list_tokens(page.store)) if one.id == name), None)
    if one is None:
        raise refused(404, "no-such-token", "There is no such token.", next_move="List them: /tokens")
    facts = [
        ui.Fact(column.word.lower(), cell) for column, cell in zip(TOKENS, token_row(one, page.now).cells, strict=True)
    ]
    revoke = ui.ActForm(
        href("tokens", one.id, "revoke"),
        "Revoke",
        "admin",
        "Requests with this token are refused within 3 seconds, and its sessions end. This cannot be undone.",
        page.command("tokens", "revoke", one.id),
        (ui.ActField("typed", "Type the name of the token", is_required=True),),
        is_grave=True,
    )
    acts = [revoke] if one.is_valid(page.now) else []
    return page.details(
        ui.DetailPage(one.name, one.state, (("Tokens", "/tokens"),), facts[3:], acts=acts), ("tokens", "list")
    )


async def revoke(page: PageRequest) -> Reply:
    return await page.submitted(lambda fields: _revoked(page, fields))


async def _revoked(page: PageRequest, fields: FormFields) -> FormOutcome:
    name = page.param("id")
    if page.tenant != page.app.runtime.root.tenant:
        raise refused(403, "not-yours", "Tokens belong to the operator of this server.", next_move="Ask them.")
    one = next((one for one in await await_(list_tokens(page.store)) if one.id == name), None)
    if one is None or fields.get("typed", "").strip() != one.name:
        raise refused(400, "not-typed", "The name was not typed as it is.", next_move="Type the token's name.")
    try:
        await await_(revoke_token(page.store, name, by=page.actor(fields)))
    except Misuse as error:
        raise refused(
            409, "not-revoked", f"The token was not revoked: {error}", next_move="Look at the tokens."
        ) from None
    return FormOutcome(href("tokens", said="revoked"))


PAGES = (
    PageSpec("GET", "/health", Scope.OPERATOR, health, "health"),
    PageSpec("GET", "/tokens", Scope.OPERATOR, tokens, "tokens"),
    PageSpec("GET", "/tokens/{id}", Scope.OPERATOR, token, "tokens"),
    PageSpec("POST", "/tokens/{id}/revoke", Scope.ADMIN, revoke, "tokens"),
)
