"""What an app offers about blocked duplicates: look at them, and be told of them."""

from __future__ import annotations

from ...claims.policy import Duration
from ...claims.tally import Tally, most_blocked
from ...drive import block
from ...effects.notice import Hook
from ...effects.notifier import Notifier
from ...keys.duration import seconds
from ...observe.duplicates import Blocked
from ..parts import Parts

__all__ = ["DuplicatesApi"]


class DuplicatesApi:
    """The part of an app that is about repeats that were answered without doing the work."""

    parts: Parts
    tally: Tally

    def duplicates(
        self, *, flow: str = "", source: str | None = None, since: float = 0.0, limit: int = 100
    ) -> list[Blocked]:  # fmt: skip
        """The keys with most blocked repeats, over all processes. `since` is in seconds since 1970, to the hour."""
        self.tally.flush()
        which = {"operation": flow, "source": source, "since": since, "limit": limit}
        return block(most_blocked(self.parts.store, self.parts.tenant, **which))  # type: ignore[arg-type]

    def notify_duplicates(
        self, hook: Hook, *, quiet: Duration = "10m", threshold: int = 10, name: str = ""
    ) -> None:  # fmt: skip
        """Tell `hook` when repeats of a key were blocked `threshold` times in this process since it was last told.

        One message per key and quiet period, whichever process sends it. `name` tells hooks apart across processes;
        without one, the first hook of one process is the first hook of another.
        """
        name = name or str(len(self.tally.told))
        self.tally.told.append(
            Notifier(
                self.parts.store, hook, name=name, quiet=seconds(quiet, name="quiet"), threshold=threshold,
                clock=self.parts.clock,
            )
        )  # fmt: skip
