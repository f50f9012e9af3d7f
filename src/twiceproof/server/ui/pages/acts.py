"""Acts: who did what by hand, and to which key."""

from __future__ import annotations

from collections.abc import Sequence

from ....claims.acts import ActShape, list_acts
from ....errors import Misuse
from ....inbound.reply import Reply
from ....operations import await_
from ...tokens import Scope
from .. import listing as ui
from ..dashboard import PageRequest, PageSpec, refused
from ..formatting import href

__all__ = ["PAGES", "act_rows"]

ROWS = 50
COLUMNS = tuple(ui.Column(word) for word in ("When", "Who", "Did", "To", "Said", "Why"))
FILTERS = (ui.ListingFilter("by", "Who"), ui.ListingFilter("operation", "Operation"), ui.ListingFilter("key", "Key"))
EMPTY = (
    "No changes by hand",
    "All that a person settles, approves, retries, cancels, forks, replays, releases or revokes is recorded here.",
    "",
)


def act_rows(found: Sequence[ActShape]) -> list[ui.ListingRow]:
    return [
        ui.ListingRow(
            (
                ui.when(one.at),
                ui.text(one.by),
                ui.text(f"{one.verb} {one.step}".strip()),
                ui.text(one.key)
                if one.operation == "tokens"
                else ui.key(one.key, href("keys", one.operation, one.key)),
                ui.text(one.said),
                ui.text(one.note),
            ),
            name=1,
        )
        for one in found
    ]


async def listed(page: PageRequest) -> Reply:
    asked = {one.name: page.asked(one.name) for one in FILTERS if page.asked(one.name)}
    after = page.asked("after") or None
    try:
        found = await await_(list_acts(page.store, page.tenant, **asked, limit=ROWS, after=after))
    except Misuse:
        raise refused(404, "no-such-page", "This place is not known.", next_move="Begin at /acts.") from None
    made = ui.Listing(
        "Acts",
        COLUMNS,
        act_rows(found.acts),
        EMPTY,
        FILTERS,
        older=ui.address_with("/acts", {**asked, "after": found.after}) if found.after else "",
        newer=ui.address_with("/acts", asked) if after else "",
    )
    return page.listing("Acts", made, ("acts", "list"), "/v1/acts")


PAGES = (PageSpec("GET", "/acts", Scope.READ, listed, "acts"),)
