"""What an app offers to people: blocked duplicates to look at, and notices of what they should hear of."""

from __future__ import annotations

from collections.abc import Collection

from ...claims.policy import Duration
from ...claims.tally import Tally, most_blocked
from ...drive import Operation, block
from ...effects.incidents import Incidents
from ...effects.notice import EVENTS, Hook
from ...effects.notifier import Notifier
from ...errors import Misuse
from ...keys.duration import seconds
from ...observe.duplicates import Blocked
from ...records import Record
from ...stores.grouped import GroupedStore
from ..parts import Parts
from ..workers.duty import Duty

__all__ = ["DuplicatesApi"]


class LookAround(Duty):
    """When a worker starts, it tells of what waits for somebody."""

    kind = "notice"

    def __init__(self, incidents: Incidents) -> None:
        self._incidents = incidents

    def queues(self) -> list[str]:
        return []

    def prepare(self) -> Operation[None]:
        yield from self._incidents.look_around()

    def carry_out(self, record: Record) -> Operation[None]:
        yield from ()  # nothing of it falls due


class DuplicatesApi:
    """The part of an app that is about repeats that were answered without doing the work."""

    parts: Parts
    tally: Tally
    duties: list[Duty]
    incidents: list[Incidents]

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

    def notify(
        self, hook: Hook, *, on: str | Collection[str] = EVENTS, quiet: Duration = "10m", name: str = ""
    ) -> None:  # fmt: skip
        """Tell `hook` when a run or a claim waits for review ("review"), has failed for good ("failure"), or a delivery
        was kept aside because it could not be taken in ("dead-letter").

        One message per flow or webhook, event and quiet period, whichever process sends it; what comes meanwhile is in
        the next one. Nobody waits for it: a run goes on. `name` tells hooks apart across processes; without one, the
        first hook of one process is the first hook of another.
        """
        store = self.parts.store
        if not isinstance(store, GroupedStore):
            raise Misuse("This store does not tell what is written to it; open one by its URL: sqlite:///shop.db")
        incidents = Incidents(
            store, hook, on=on, quiet=seconds(quiet, name="quiet"), name=name or str(len(self.incidents)),
            clock=self.parts.clock,
        )  # fmt: skip
        self.incidents.append(incidents)
        store.heard.append(incidents.hear)
        self.duties.append(LookAround(incidents))
