"""EtcdEngine: a ledger under one prefix of an etcd cluster."""

from __future__ import annotations

from collections.abc import Sequence

from ...clock import Clock, system_clock
from ...errors import StoreUnavailable
from ..base import POINT, Disconnected, Finding, NoLedger, StorePromises
from ..rows.engine import META, RowEngine, reading, settings_written
from ..rows.row import LaneCount
from ..rows.table import Throttled
from .connection import EtcdTable
from .doctor import examine, refuse_unsafe
from .url import EtcdUrl

__all__ = ["EtcdEngine"]


class EtcdEngine(RowEngine):
    """Records as keys. One lane: etcd has a single log. A request has at most 1.5 MiB, which bounds a batch."""

    promises = StorePromises("yes", "kept by a majority", "each member's", "2", "1", "etcd, three members")
    group_limit = 100
    links_spaces = True
    body_limit = 900_000
    most_bytes = 1_100_000
    table: EtcdTable

    def __init__(self, url: str, *, clock: Clock = system_clock, create: bool = True) -> None:
        self.target = EtcdUrl.of(url)
        table = EtcdTable(self.target, clock)
        try:
            lanes = self._open(table, create)
        except (Disconnected, Throttled) as error:
            table.close()
            raise StoreUnavailable(
                f"etcd does not answer ({error}). Check that most of its members run, then try again.", unsure=False
            ) from None
        except BaseException:
            table.close()
            raise
        self._begin(table, lanes, clock)

    def _open(self, table: EtcdTable, create: bool) -> int:
        refuse_unsafe(table)
        (found,) = table.read([META])
        if found is None and create:
            found = settings_written(table, 1)
        if found is None:
            raise NoLedger(
                f"There is no ledger under {self.target.prefix!r} in this etcd; {POINT}.", findings=examine(table)
            )
        return LaneCount.read(found.data).lanes

    def examine(self) -> Sequence[Finding]:
        with reading():
            return examine(self.table)
