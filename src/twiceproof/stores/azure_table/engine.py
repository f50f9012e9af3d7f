"""AzureTableEngine: a ledger in one table of a storage account, which it creates."""

from __future__ import annotations

from collections.abc import Sequence

from azure.core.exceptions import ResourceExistsError

from ...clock import Clock, system_clock
from ...errors import StoreError, StoreUnavailable
from ..base import POINT, Disconnected, Finding, NoLedger, StorePromises
from ..rows.engine import META, RowEngine, reading, settings_written
from ..rows.row import LaneCount
from ..rows.table import LaneRow, Throttled
from .connection import AzureTable, ConditionFailed
from .doctor import examine
from .url import AzureTableUrl

__all__ = ["AzureTableEngine"]


class AzureTableEngine(RowEngine):
    """Records in a table. An entity has at most 1 MiB, a transaction 4 MiB."""

    promises = StorePromises(
        "left to the service", "may be lost to another region", "the service's", "2", "2", "an emulator (Azurite)"
    )
    body_limit = 900_000
    most_bytes = 2_900_000  # as Base64 the 4 MiB of a transaction
    table: AzureTable

    def __init__(self, url: str, *, clock: Clock = system_clock, create: bool = True) -> None:
        self.target = AzureTableUrl.of(url)
        table = AzureTable(self.target, clock)
        try:
            lanes = self._open(table, create)
        except (Disconnected, Throttled) as error:
            table.close()
            raise StoreUnavailable(
                f"Azure Table Storage does not answer ({error}). Check the account and the network, then try again.",
                unsure=False,
            ) from None
        except BaseException:
            table.close()
            raise
        self._begin(table, lanes, clock)

    def _open(self, table: AzureTable, create: bool) -> int:
        found = self._meta(table)
        if found is None and create:
            _create(table)
            found = settings_written(table, self.target.lanes)
        if found is None:
            seen = examine(table, self.target.lanes)
            raise NoLedger(f"There is no ledger in the table {self.target.table!r}; {POINT}.", findings=seen)
        return LaneCount.read(found.data).lanes

    def _meta(self, table: AzureTable) -> LaneRow | None:
        try:
            return table.read([META])[0]
        except StoreError as error:
            if "does not exist" in str(error):
                return None
            raise

    def examine(self) -> Sequence[Finding]:
        with reading():
            return examine(self.table, self.lanes)


def _create(table: AzureTable) -> None:
    try:
        table.ask(lambda client: client.create_table())
    except (ConditionFailed, StoreError) as error:
        if not isinstance(error.__cause__, ResourceExistsError):
            raise
