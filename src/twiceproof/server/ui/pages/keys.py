"""The page of one key: its history, its state and its result, and what may be done with a claim."""

from __future__ import annotations

from ....claims.claim import DONE, FAILED, REVIEW, shown_id, space_of, validate_name
from ....claims.manager import ClaimManager
from ....claims.queries import Evidence
from ....errors import Misuse
from ....inbound.reply import Reply
from ....keys import validate_key
from ....operations import await_
from ...routes import reviews
from ...services.key_history import KeyRecords, read_history, read_key
from ...tokens import Scope
from .. import listing as ui
from ..dashboard import PageRequest, PageSpec, refused
from ..formatting import ShownValue, href, shown_value
from ..forms import FormFields, FormOutcome, body_with

__all__ = ["PAGES"]

FIRST, LAST = 20, 200  # lines of a long history


def _space(page: PageRequest) -> str:
    try:
        return space_of(
            page.tenant, validate_name("operation", page.param("operation")), validate_key(page.param("key"))
        )
    except Misuse as error:
        raise refused(404, "no-such-key", str(error), next_move="Find it by another name.") from None


async def _records(page: PageRequest) -> KeyRecords:
    found = await await_(read_key(page.store, _space(page)))
    if found is None:
        raise refused(
            404,
            "no-such-key",
            "Nothing is on record under this key.",
            next_move="Find it by another name, or look at all runs.",
        )
    return found


async def show(page: PageRequest) -> Reply:
    records = await _records(page)
    operation, name = records.claim.operation, records.claim.key
    lines, blocked = await await_(read_history(page.store, records))
    run = shown_id(records.at) if records.whole is not None else ""
    return page.show(
        "key.html",
        f"{name} · {operation}",
        operation=operation,
        key=name,
        run=run,
        state=records.record.state,
        lapsed=records.is_lapsed,
        claim=records.claim,
        record=records.record,
        kept=ui.left_until(records.record.due_at if records.record.state in (DONE, FAILED) else None, records.now),
        ids=records.ids,
        blocked=blocked,
        came=blocked + 1,
        reason=records.reason,
        lines=lines[:FIRST] + lines[max(FIRST, len(lines) - LAST) :],
        between=max(0, len(lines) - FIRST - LAST),
        result=shown_value(records.result or None),
        evidence=[] if records.whole else _evidence(records),
        acts=_acts(page, records),
        command=page.command(
            *(("runs", "show", f"{operation}/{name}") if run else ("claims", "show", operation, name))
        ),
        json=f"/v1{href('keys', operation, name)}",
    )


def _evidence(records: KeyRecords) -> list[tuple[Evidence, ShownValue | None]]:
    return [(one, shown_value(one.result or None)) for one in records.evidence]


def _acts(page: PageRequest, records: KeyRecords) -> list[ui.ActForm]:
    """Return what may be done with a claim. A run is settled on its own page, where its steps are."""
    operation, name = records.claim.operation, records.claim.key
    address, found = href("keys", operation, name), []
    seen = (("version", records.record.version),)
    if records.whole is None and (records.record.state == REVIEW or records.is_lapsed):
        fields = (
            ui.ActField("verdict", "What happened?", choices=("happened", "did-not-happen", "abandon")),
            ui.ActField("result", "If it happened: what it returned, as JSON", is_json=True),
            ui.ActField("note", "Why"),
        )
        command = page.command("claims", "settle", "--happened", "--result", "JSON", operation, name)
        found.append(ui.ActForm(f"{address}/settle", "Settle", "approve", "", command, fields, seen))
    if records.whole is None:
        typed = (ui.ActField("typed", "Type the key", is_required=True),)
        command = page.command("claims", "release", "--yes", operation, name)
        about = "The claim and its result are deleted. The next call with this key does the work again."
        found.append(ui.ActForm(f"{address}/release", "Release", "admin", about, command, typed, seen, is_grave=True))
    return found


async def settle(page: PageRequest) -> Reply:
    return await page.submitted(lambda fields: _settled(page, fields))


async def _settled(page: PageRequest, fields: FormFields) -> FormOutcome:
    records = await _records(page)
    given = {name: fields.get(name, "") for name in ("verdict", "note", "version")}
    raw = {"result": fields.get("result", "").strip() or "null"} if given["verdict"] == "happened" else {}
    body = body_with({**given, **page.acting_as(fields)}, **raw)
    back = href("keys", records.claim.operation, records.claim.key, said="settled")
    return await page.by_api(reviews.settle_review, {"name": shown_id(records.at)}, body, back)


async def release(page: PageRequest) -> Reply:
    return await page.submitted(lambda fields: _released(page, fields))


async def _released(page: PageRequest, fields: FormFields) -> FormOutcome:
    records = await _records(page)
    if fields.get("typed", "").strip() != records.claim.key:
        raise refused(400, "not-typed", "The key was not typed as it is.", next_move="Type the whole key.")
    if fields.get("version") != records.record.version:
        raise refused(409, "changed", "This has changed since you looked.", next_move="Look at it again.")
    try:
        await await_(ClaimManager(page.store).free(records.at, by=page.actor(fields), version=records.record.version))
    except Misuse as error:
        raise refused(
            409, "still-held", f"The claim was not released: {error}", next_move="Look at it again."
        ) from None
    return FormOutcome(href("claims", said="released"))


PAGES = (
    PageSpec("GET", "/keys/{operation}/{key}", Scope.READ, show, "runs"),
    PageSpec("POST", "/keys/{operation}/{key}/settle", Scope.APPROVE, settle, "review"),
    PageSpec("POST", "/keys/{operation}/{key}/release", Scope.ADMIN, release, "claims"),
)
