"""DynamoDbEngine: a ledger in one DynamoDB table, which it creates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...clock import Clock, system_clock
from ...errors import StoreError, StoreUnavailable
from ..base import POINT, Disconnected, Finding, NoLedger, StorePromises
from ..rows.engine import META, RowEngine, reading, settings_written
from ..rows.row import LaneCount
from ..rows.table import Throttled
from .connection import DynamoTable
from .doctor import examine, examine_service, refuse_unsafe, survey
from .url import DynamoDbUrl

__all__ = ["DynamoDbEngine"]

SECONDS_TO_CREATE = 60.0
READY = ("ACTIVE", "UPDATING")


class DynamoDbEngine(RowEngine):
    """Records in a table. An item has at most 400 KB, a transaction 4 MB."""

    promises = StorePromises(
        "left to the service",
        "left to the service; one region",
        "the service's",
        "2",
        "1",
        "emulators (ministack, DynamoDB Local)",
    )
    links_spaces = True
    body_limit = 380_000
    most_bytes = 3_800_000

    def __init__(self, url: str, *, clock: Clock = system_clock, create: bool = True) -> None:
        self.target = DynamoDbUrl.of(url)
        table = self._table(clock)
        self._clock = clock
        try:
            lanes = self._open(table, create)
        except (Disconnected, Throttled) as error:
            table.close()
            raise StoreUnavailable(
                f"DynamoDB does not answer ({error}). Check the region and the network, then try again.", unsure=False
            ) from None
        except BaseException:
            table.close()
            raise
        self._begin(table, lanes, clock)

    def _table(self, clock: Clock) -> DynamoTable:
        return DynamoTable(self.target, clock)

    def _open(self, table: DynamoTable, create: bool) -> int:
        description = self._described(table)
        if description is None:
            if not create:
                seen = examine_service(table)
                raise NoLedger(f"There is no DynamoDB table {table.name!r} in this region; {POINT}.", findings=seen)
            description = self._created(table)
        elif description.get("TableStatus") not in READY:  # another process is creating it
            description = self._active(table)
        refuse_unsafe(survey(table, description))
        (found,) = table.read([META])
        if found is None and create:
            found = settings_written(table, self.target.lanes)
        if found is None:
            seen = examine(table, self.target.lanes, description)
            raise NoLedger(f"There is no ledger in the DynamoDB table {table.name!r}; {POINT}.", findings=seen)
        return LaneCount.read(found.data).lanes

    def _described(self, table: DynamoTable) -> Any:
        try:
            return table.ask("describe_table", TableName=table.name)["Table"]
        except StoreError as error:
            if "does not exist" in str(error):
                return None
            raise

    def _created(self, table: DynamoTable) -> Any:
        try:
            table.ask(
                "create_table",
                TableName=table.name,
                KeySchema=[
                    {"AttributeName": "pk", "KeyType": "HASH"},
                    {"AttributeName": "sk", "KeyType": "RANGE"},
                ],
                AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk")],
                BillingMode="PAY_PER_REQUEST",
            )
        except (StoreError, Throttled) as error:
            if "ResourceInUse" not in str(error):
                raise
        return self._active(table)

    def _active(self, table: DynamoTable) -> Any:
        deadline = self._clock.monotonic() + SECONDS_TO_CREATE
        while self._clock.monotonic() < deadline:
            description = self._described(table)
            if description is not None and description.get("TableStatus") in READY:
                return description
            self._clock.sleep(0.5)
        raise StoreUnavailable("The DynamoDB table is still being created; try again in a minute.", unsure=False)

    def examine(self) -> Sequence[Finding]:
        with reading():
            return examine(self.table, self.lanes, self._described(self.table))  # type: ignore[arg-type]
