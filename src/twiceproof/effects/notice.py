"""The notice: something that a person should hear of, in words, with the command that shows more."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from ..shell import typed

__all__ = ["DEAD_LETTER", "DUPLICATE", "EVENTS", "FAILURE", "REVIEW", "Hook", "Notice"]

DUPLICATE, REVIEW, FAILURE, DEAD_LETTER = "duplicate", "review", "failure", "dead-letter"
EVENTS = (REVIEW, FAILURE, DEAD_LETTER)  # that `app.notify` tells of
TYPES = {
    DUPLICATE: "duplicates.blocked", REVIEW: "review.needed", FAILURE: "run.failed", DEAD_LETTER: "letter.kept",
}  # fmt: skip


class Notice(Struct, frozen=True):
    """`count` is of what happened since the last notice of it. The same `id` is never sent twice.

    Of blocked duplicates there is one notice per key. Of reviews, failures and dead letters there is one per flow or
    webhook (`operation`): `key` and `reason` are those of the latest.
    """

    id: str
    tenant: str
    source: str
    operation: str
    key: str
    count: int
    first_at: float
    last_at: float
    event: str = DUPLICATE
    reason: str = ""

    @property
    def type(self) -> str:
        """For programs: the type of the webhook's event."""
        return TYPES[self.event]

    @property
    def line(self) -> str:
        if self.event == DUPLICATE:
            source = f" from {self.source}" if self.source else ""
            return f"{self.count} repeats of {self.operation} for {self.key!r}{source} were blocked"
        what = {
            REVIEW: f"{self.operation} for {self.key!r} waits for review",
            FAILURE: f"{self.operation} for {self.key!r} failed",
            DEAD_LETTER: f"a delivery to {self.operation} could not be taken in and was kept ({self.key})",
        }[self.event]
        more = f", and {self.count - 1} more" if self.count > 1 else ""
        return f"{what}{': ' if self.reason else ''}{self.reason}{more}"

    @property
    def look(self) -> str:
        """The command that shows more."""
        tenant = () if self.tenant == "default" else ("--tenant", self.tenant)
        words = {
            DUPLICATE: ("duplicates", "--flow", self.operation),
            REVIEW: ("review", "list", "--flow", self.operation),
            FAILURE: ("claims", "list", "--operation", self.operation, "--state", "failed"),
            DEAD_LETTER: ("hooks", "letters"),
        }[self.event]
        return typed(*words, *tenant)


Hook = Callable[[Notice], None]
