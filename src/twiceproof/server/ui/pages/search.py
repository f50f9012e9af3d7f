"""The search box: finds a key, a run, an event, an external id, a dead letter or an approval. A single hit opens at
once.
"""

from __future__ import annotations

from ....inbound.reply import Reply
from ....operations import await_
from ...services.search import find, looked_through
from ...tokens import Scope
from .. import listing as ui
from ..dashboard import PageRequest, PageSpec
from ..formatting import href

__all__ = ["PAGES"]

COLUMNS = tuple(ui.Column(word) for word in ("What", "Where", "Name", "State"))


async def show(page: PageRequest) -> Reply:
    name = page.asked("q").strip()
    hits = await await_(find(page.app, name)) if name else []
    if len(hits) == 1:
        return Reply(303, (("location", hits[0].href),))
    rows = [
        ui.ListingRow(
            (
                ui.text(hit.what),
                ui.text(hit.where),
                ui.key(hit.name, hit.href),
                ui.state(hit.state) if hit.state else ui.text(""),
            ),
            name=2,
        )
        for hit in hits
    ]
    empty = (
        ("Nothing has this name", looked_through(page.app), "")
        if name
        else ("What do you look for?", "Type a key, a run, an event or an id into the box above.", "")
    )
    made = ui.Listing("Hits", COLUMNS, rows, empty)
    return page.listing(
        "Find", made, ("ids", "show", name) if name else (), f"/v1{href('find', q=name)}" if name else ""
    )


PAGES = (PageSpec("GET", "/find", Scope.READ, show, "find"),)
