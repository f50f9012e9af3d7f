"""A PostgreSQL that follows another, and its promotion."""

import time
from collections.abc import Mapping

import psycopg

from tests.servers.postgres import PostgresServer, chosen_programs
from tests.servers.process import START_SECONDS, StartFailed, run

__all__ = ["PostgresStandby"]


class PostgresStandby(PostgresServer):
    """Made from a running server. It streams from there until it is promoted, or cut off from it."""

    name = "standby"  # to its primary, as in synchronous_standby_names

    def __init__(self, primary: PostgresServer, settings: Mapping[str, str] | None = None) -> None:
        source = f"host={primary.host} port={primary.port} user=postgres application_name={self.name}"
        super().__init__({**(settings or {}), "primary_conninfo": source})
        self._primary = primary
        self._source = source

    def prepare(self) -> None:
        data = self.directory / "data"
        run(
            [str(chosen_programs() / "pg_basebackup"), "-d", self._source, "-D", str(data), "-c", "fast", "-N"],
            self.directory,
        )
        (data / "standby.signal").touch()

    def catch_up(self) -> None:
        """Returns when everything that the primary had then is here, too."""
        with psycopg.connect(self._primary.dsn(), autocommit=True) as primary:
            ((there,),) = primary.execute("SELECT pg_current_wal_lsn()::text")
        self._until("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", there)

    def be_synchronous(self) -> None:
        """From now on the primary acknowledges nothing that is not here, too."""
        with psycopg.connect(self._primary.dsn(), autocommit=True) as primary:
            primary.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{self.name}'")
            primary.execute("SELECT pg_reload_conf()")
        self._until("SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'", of=self._primary)

    def cut_off(self) -> None:
        """What the primary commits from now on does not come here any more."""
        with psycopg.connect(self.dsn(), autocommit=True) as db:
            db.execute("ALTER SYSTEM SET primary_conninfo = ''")
            db.execute("SELECT pg_reload_conf()")
        self._until("SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")

    def promote(self) -> None:
        with psycopg.connect(self.dsn(), autocommit=True) as db:
            db.execute("SELECT pg_promote()")

    def _until(self, question: str, *values: str, of: PostgresServer | None = None) -> None:
        end = time.monotonic() + START_SECONDS
        with psycopg.connect((of or self).dsn(), autocommit=True) as db:
            while db.execute(question, values).fetchone() != (True,):
                if time.monotonic() > end:
                    raise StartFailed(f"the standby is not there yet: {question}")
                time.sleep(0.005)
