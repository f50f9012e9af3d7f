"""Approvals: pending requests, and the decision about exactly the data that was shown."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from ....flows.waits.approvals import decided_approvals, find_open
from ....flows.waits.records import Approval, request_address, request_of
from ....inbound.reply import Reply
from ....operations import await_
from ...routes import approvals
from ...services.approvals import ApprovalView, by_id, view_at
from ...tokens import Scope
from ..dashboard import PageRequest, PageSpec, refused
from ..formatting import ShownValue, href, shown_value, span
from ..forms import FormFields, FormOutcome, body_with
from ..listing import active_filters

__all__ = ["PAGES", "left_of", "shown_fields"]

MOST, MOST_READ = 200, 2_200  # shown, and looked through; the run of each is read too
DECIDED, MOST_DECIDED = 20, 200


def left_of(approval: Approval, now: float) -> str:
    """Return how long there is to decide."""
    if approval.until is None:
        return "no limit"
    return f"{span(approval.until - now)} left" if approval.until > now else "its time is over"


def shown_fields(shown: Raw) -> list[tuple[str, ShownValue | None]]:
    """Return what the approval is about, field by field, each number as it was written; anything but an object as one
    value."""
    try:
        fields = msgspec.json.decode(shown, type=dict[str, Raw])
    except msgspec.ValidationError:
        return [("", shown_value(shown))]
    return [(name, shown_value(_as_text(field))) for name, field in fields.items()]


def _as_text(field: Raw) -> str | Raw:
    """Return a text without its quotes."""
    return msgspec.json.decode(field, type=str) if bytes(field).startswith(b'"') else field


async def listed(page: PageRequest) -> Reply:
    flow = page.asked("flow")
    prefix = f"{page.tenant}/{flow}/" if flow else f"{page.tenant}/"
    found = await await_(find_open(page.store, prefix, MOST, most_read=MOST_READ))
    decided = await await_(decided_approvals(page.store, prefix, DECIDED, most_read=MOST_DECIDED))
    rows = [
        {"approval": one, "href": href("approvals", one.id), "left": left_of(one, page.now)} for one in found.approvals
    ]
    return page.show(
        "approvals.html",
        "Approvals",
        rows=rows,
        more=found.more,
        decided=[{"approval": one, "href": href("approvals", one.id)} for one in decided],
        chips=active_filters("/approvals", page.query, ("flow",)),
        command=page.command("approvals", "list", *(["--flow", flow] if flow else [])),
    )


async def _view(page: PageRequest) -> ApprovalView:
    name = page.param("id")
    access = await await_(by_id(page.store, page.tenant, name, page.call.principal.name))
    if isinstance(access, Reply):
        raise refused(
            404,
            "no-such-approval",
            "There is no such approval, or it has expired.",
            next_move="List those that are open.",
        )
    return await await_(view_at(page.store, access, page.now))


async def show(page: PageRequest) -> Reply:
    view = await _view(page)
    approval = view.approval
    return page.show(
        "approval.html",
        f"Approve {approval.name}?",
        approval=approval,
        nonces=view.nonces,
        fields=shown_fields(await _shown(page, approval)),
        left=left_of(approval, page.now),
        run_href=href("runs", approval.run),
        action=href("approvals", approval.id),
        decisions=[(word, page.command("approvals", word, approval.id)) for word in ("approve", "reject")],
        json=f"/v1{href('approvals', approval.id)}",
    )


async def _shown(page: PageRequest, approval: Approval) -> Raw:
    """Return what was recorded: decoded, a number could be another one."""
    record = (await page.store.read(request_address(approval.id)).wait()).record
    return Raw(msgspec.json.encode(approval.shown)) if record is None else request_of(record).shown


async def decide(page: PageRequest) -> Reply:
    return await page.submitted(lambda fields: _decided(page, fields))


async def _decided(page: PageRequest, fields: FormFields) -> FormOutcome:
    decision, _, nonce = fields.get("choice", "").partition(":")
    given = {
        "decision": decision,
        "nonce": nonce,
        "shown": fields.get("shown", ""),
        "note": fields.get("note", ""),
        **page.acting_as(fields),
    }
    name = page.param("id")
    return await page.by_api(approvals.decide, {"id": name}, body_with(given), href("approvals", name, said="decided"))


PAGES = (
    PageSpec("GET", "/approvals", Scope.READ, listed, "approvals"),
    PageSpec("GET", "/approvals/{id}", Scope.READ, show, "approvals"),
    PageSpec("POST", "/approvals/{id}", Scope.APPROVE, decide, "approvals"),
)
