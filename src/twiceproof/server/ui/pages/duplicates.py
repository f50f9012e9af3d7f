"""Blocked repeats: the keys that came most often, and where they came in."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ....claims.duplicates import OTHERS, Blocked, recently_blocked
from ....errors import Misuse
from ....inbound.hook import operation_of
from ....inbound.reply import Reply
from ....keys.duration import seconds
from ....operations import await_
from ...tokens import Scope
from .. import listing as ui
from ..dashboard import PageRequest, PageSpec, refused
from ..formatting import href

__all__ = ["PAGES", "blocked_rows"]

MOST = 200
A_DAY, A_WEEK = 24, 7 * 24  # hours of the chart
COLUMNS = (
    ui.Column("Repeats", is_number=True),
    ui.Column("Operation"),
    ui.Column("Key"),
    ui.Column("Door"),
    ui.Column("First"),
    ui.Column("Last"),
)
FILTERS = (
    ui.ListingFilter("flow", "Operation"),
    ui.ListingFilter("source", "Door"),
    ui.ListingFilter("since", "Within", ("1h", "24h", "7d")),
)
EMPTY = (
    "Nothing came twice",
    "When the same key comes again, the work is not done again: the repeat is answered with the first result, and "
    "counted here. Counts appear some seconds later.",
    "",
)


def blocked_rows(found: Sequence[Blocked], hooks: Collection[str] = ()) -> list[ui.ListingRow]:
    """`hooks`: webhooks and consumers. What came by one of them was blocked under its event's id."""
    return [
        ui.ListingRow(
            (
                ui.number(one.count),
                ui.text(one.operation),
                ui.text("other keys, counted together")
                if one.key == OTHERS
                else ui.key(
                    one.key,
                    href("keys", operation_of(one.source) if one.source in hooks else one.operation, one.key),
                ),
                ui.text(one.source or "call"),
                ui.when(one.first_at),
                ui.when(one.last_at),
            ),
            name=2,
        )
        for one in found
    ]


async def listed(page: PageRequest) -> Reply:
    since, flow = page.asked("since"), page.asked("flow")
    try:
        after = page.now - seconds(since, name="since") if since else 0.0
    except Misuse as error:
        raise refused(400, "bad-query", str(error), next_move="Remove this filter.") from None
    found = await await_(
        recently_blocked(
            page.store,
            page.tenant,
            page.now,
            operation=flow,
            source=page.asked("source") or None,
            since=after,
            limit=MOST,
        )
    )
    total, keys = sum(one.count for one in found.rows), len(found.rows)
    note = "There are more than are looked through for a page; these are of the latest hours." if found.more else ""
    made = ui.Listing(
        "Duplicates",
        COLUMNS,
        blocked_rows(found.rows, {*page.app.hooks, *page.app.consumers}),
        EMPTY,
        FILTERS,
        note=note,
    )
    of = f"{keys:,} {'key' if keys == 1 else 'keys'}"
    intro = f"Repeats of {of}, blocked: {total:,}. Nothing was done twice." if keys else ""
    bars = ui.hour_bars(found.by_hour, page.now, A_WEEK if since == "7d" else A_DAY)
    words = ("duplicates", *(("--flow", flow) if flow else ()))
    return page.listing("Duplicates", made, words, "/v1/duplicates", intro=intro, bars=bars)


PAGES = (PageSpec("GET", "/duplicates", Scope.READ, listed, "duplicates"),)
