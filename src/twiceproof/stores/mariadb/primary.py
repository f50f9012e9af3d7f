"""Which server holds the ledger: notices when another one has taken over; keeps numbers from being drawn twice.

A promoted replica may lack the primary's last acknowledged writes, also with semi-synchronous replication, which falls
back to asynchronous when no replica answers. A server is identified by its server_id, which replication requires to be
unique; a Galera cluster, whose nodes acknowledge together, by its name. The database stores it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from pymysql.err import OperationalError

from ...errors import StoreError, StoreUnsafe
from ..base import Finding
from ..open import ACCEPT, BEFORE_ACCEPTING
from .rows import PRESENT, LedgerSql, Row

__all__ = ["MariadbPrimary"]

Ask = Callable[..., Sequence[Sequence[Row]]]

SKIP = 2**31  # more than another server can have drawn and lost: some minutes, if the clocks differ
# A build without Galera lacks its variables.
WHICH = (
    "SELECT MAX(IF(variable_name = 'READ_ONLY', variable_value, NULL)),"
    " IF(MAX(IF(variable_name = 'WSREP_ON', variable_value, '')) = 'ON',"
    " CONCAT('galera ', MAX(IF(variable_name = 'WSREP_CLUSTER_NAME', variable_value, ''))),"
    " CONCAT('server_id ', MAX(IF(variable_name = 'SERVER_ID', variable_value, ''))))"
    " FROM information_schema.global_variables"
    " WHERE variable_name IN ('READ_ONLY', 'WSREP_ON', 'WSREP_CLUSTER_NAME', 'SERVER_ID')"
)

# When and where the table was made: a dump that is loaded makes it anew. The nodes of a cluster make it at different
# times.
PLACE = (
    "SELECT CONCAT(table_schema, '/', UNIX_TIMESTAMP(create_time)) FROM information_schema.tables"
    " WHERE table_schema = DATABASE() AND table_name = 'twiceproof_facts' AND create_time IS NOT NULL"
)


class MariadbPrimary:
    """The server that was found at opening. Every new connection may lead to another one."""

    def __init__(self) -> None:
        self._sql: LedgerSql | None = None
        self._known = ""

    def open(self, ask: Ask, sql: LedgerSql, *, accept: bool) -> None:
        self._sql = sql
        now, noted = self._look(ask)
        if accept:
            self.skip(ask)
        if noted and noted != now and not accept:
            raise _taken_over(now, noted)
        if noted != now:
            note = f"REPLACE INTO {sql.ledger}.twiceproof_facts VALUES ('server', %s)"  # noqa: S608
            ask((note, [now]))
        self._known = now
        self._note_restored(ask, accept=accept)
        self._prepare(ask)

    def greet(self, ask: Ask) -> None:
        """Check the server, before any other request on a new connection."""
        if self._sql is None or not self._known:
            return
        now, noted = self._look(ask)
        if now != self._known and now != noted:
            raise _taken_over(now, self._known)
        self._known = now
        self._prepare(ask)

    def _prepare(self, ask: Ask) -> None:
        """Bring the counter up to the present. On Galera, first wait for the writes that other nodes have
        acknowledged.
        """
        sql = self._sql
        assert sql is not None  # noqa: S101
        if sql.galera:
            ask(("SET SESSION wsrep_sync_wait = 7", ()))
            return
        (((present,),),) = ask((f"SELECT {PRESENT}", ()))
        self._set(ask, sql, present)

    def _set(self, ask: Ask, sql: LedgerSql, number: int) -> None:
        """Set the counter; the server never moves it back."""
        with contextlib.suppress(StoreError):
            ask((f"SELECT SETVAL({sql.ledger}.twiceproof_number, %s)", [number]))

    def _note_restored(self, ask: Ask, *, accept: bool) -> None:
        """Note that the tables are not those in which their place was noted: a backup was loaded, or files copied."""
        sql = self._sql
        assert sql is not None  # noqa: S101
        if sql.galera:
            return
        here, noted = ask((PLACE, ()), (sql.fact("place"), ()))
        if not here or (noted == here and not accept):
            return
        when = "''" if accept or not noted else "CONCAT(LEFT(UTC_TIMESTAMP(), 16), ' UTC')"
        note = f"REPLACE INTO {sql.ledger}.twiceproof_facts SELECT 'place', (%s) UNION SELECT 'restored', {when}"
        ask((note, here[0]))

    def skip(self, ask: Ask) -> None:
        """Skip all numbers that may have been drawn and lost."""
        sql = self._sql
        if sql is None or sql.galera:
            return
        last = f"SELECT GREATEST({PRESENT}, next_not_cached_value) FROM {sql.ledger}.twiceproof_number"  # noqa: S608
        (((number,),),) = ask((last, ()))
        self._set(ask, sql, number + SKIP)

    def examine(self, ask: Ask) -> list[Finding]:
        now, noted = self._look(ask)
        if noted and now != noted:
            advice = "So that no number is drawn twice: twiceproof doctor --accept-server"
            return [Finding("warn", "server", f"another server than before ({noted}, now {now})", advice)]
        return [Finding("ok", "server", now)]

    def _look(self, ask: Ask) -> tuple[str, str]:
        assert self._sql is not None  # noqa: S101
        which, noted = ask((WHICH, ()), (self._sql.fact("server"), ()))
        read_only, now = which[0]
        if read_only != "OFF":  # its answers may be old, and it may be about to be promoted
            raise OperationalError(2013, "the server is read_only, as a replica is, and takes no writes")
        return str(now), str(noted[0][0]) if noted else ""


def _taken_over(now: str, known: str) -> StoreUnsafe:
    found = f"another server has taken over ({known} before, now {now})"
    finding = Finding("refuse", "failover", found, f"{BEFORE_ACCEPTING} {ACCEPT}")
    return StoreUnsafe(f"{finding.found}: acknowledged writes may be lost. {finding.advice}", findings=[finding])
