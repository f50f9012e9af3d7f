"""Which server holds the ledger: notices when another one has taken over, and numbers that may be drawn twice.

A promoted standby may lack what its primary acknowledged last, and would draw the same fences again. A server is
known by its system id and timeline, which every promotion changes. The database remembers them, and whether commits
waited for a standby: if they did, nothing acknowledged is missing. It also remembers its own identity: a restored
dump or a copied database differs, and skips numbers before anything is written.

Every statement names its schema. A user who may create objects in a schema on the search path could add a function,
an operator or a type that the server prefers, and that would run with our rights. The path cannot be set per
connection instead: behind a transaction pooler every statement may meet another session.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import psycopg
from msgspec import Struct

from ...errors import StoreError, StoreUnsafe
from ..base import Finding
from ..open import ACCEPT, BEFORE_ACCEPTING
from .schema import EQ, TEXT, in_schema

__all__ = ["LOOK", "Ask", "Primary", "Server"]


# Above what another server can have drawn and lost: up to its time, and some minutes more if the clocks differ.
SKIP = "SELECT {schema}.twiceproof_advance(2147483648::bigint)"
# Up to the present: a ledger that was brought back from a backup draws no number again.
ADVANCE = "SELECT {schema}.twiceproof_advance(0::bigint)"
RESTORED = f"SELECT {{schema}}.twiceproof_restored($1::{TEXT})"
ACCEPT_RESTORED = f"UPDATE {{schema}}.twiceproof_facts SET value = '' WHERE name {EQ} 'restored' RETURNING name"  # noqa: S608 - constants

LOG = "pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8)"
# The timeline as the log has it: the control file names the former one until the first checkpoint is over.
LOOK = f"""
SELECT CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN
        pg_catalog.concat((SELECT system_identifier FROM pg_catalog.pg_control_system()), '/',
            pg_catalog.concat('x', {LOG})::bit(32)::int)
    END,
    CASE WHEN pg_catalog.current_setting('synchronous_standby_names') {EQ} ''
        THEN 'asynchronous' ELSE 'synchronous' END,
    (SELECT value FROM {{schema}}.twiceproof_facts WHERE name {EQ} 'server'),
    {{schema}}.twiceproof_place(),
    (SELECT value FROM {{schema}}.twiceproof_facts WHERE name {EQ} 'place'),
    (SELECT value FROM {{schema}}.twiceproof_facts WHERE name {EQ} 'restored')"""  # noqa: S608 - constants
# Every promotion changes it. The system is left out: reading it takes as long as all the rest of the question.
TIMELINE = f"CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN {LOG} END"
# Without waiting for a standby: a successor may have none yet, and be read all the same.
_NOTED = f"""
WITH noted AS (
    UPDATE {{schema}}.twiceproof_facts SET value = $2::{TEXT} WHERE name {EQ} 'server' AND value {EQ} $1::{TEXT}
    RETURNING pg_catalog.set_config('synchronous_commit', 'local', true))
"""  # noqa: S608 - constants
NOTE = _NOTED + "SELECT FROM noted"
SUCCEED = _NOTED + SKIP + " FROM noted"

Ask = Callable[[bytes, Sequence[bytes]], Sequence[Sequence[bytes | None]]]


class Server(Struct, frozen=True):
    system: str
    timeline: int
    commits: str = ""  # "synchronous" or "asynchronous"; "" if it was not noted

    @classmethod
    def read(cls, text: str) -> Server:
        system, _, rest = text.partition("/")
        timeline, _, commits = rest.partition("/")
        return cls(system, int(timeline) if timeline.isdecimal() else 0, commits)

    @property
    def name(self) -> str:
        return f"{self.system}/{self.timeline}"

    @property
    def text(self) -> str:
        return f"{self.name}/{self.commits}" if self.commits else self.name

    def follows(self, former: Server) -> bool:
        """Whether its log goes on where the other's was left. A former primary's does not."""
        return self.system == former.system and self.timeline >= former.timeline


class Primary:
    """Known from the opening on. Every new connection may lead to another server."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._known: Server | None = None

    def open(self, ask: Ask) -> None:
        """By what the database remembers. Of one that was moved, and of what came before this was noted, the doctor
        tells.
        """
        try:
            now, noted = self._look(ask)
        except (StoreError, psycopg.Error):  # a server without an identity cannot be watched
            with contextlib.suppress(psycopg.Error):
                self.advance(ask)
            return
        self._judge(ask, now, noted, noted if noted.commits and noted.system == now.system else now)
        self.advance(ask)

    def accept(self, ask: Ask) -> None:
        """Accept this server, and a restored ledger, because an operator said so."""
        now, noted = self._look(ask)
        ask(in_schema(SKIP, self._schema), ())
        ask(in_schema(ACCEPT_RESTORED, self._schema), ())
        if now.name != noted.name:
            ask(in_schema(NOTE, self._schema), [noted.text.encode(), now.text.encode()])
        self._known = now

    def greet(self, ask: Ask) -> None:
        """Before anything else is asked on a new connection."""
        if self._known is not None:
            self._judge(ask, *self._look(ask), self._known)
            self.advance(ask)

    def advance(self, ask: Ask) -> None:
        """Bring the counter up to the present."""
        with contextlib.suppress(StoreError):  # as with notes
            ask(in_schema(ADVANCE, self._schema), ())

    def look_again(self, ask: Ask) -> None:
        """A number was drawn that is smaller than one before: an older ledger was put in place of this one."""
        with contextlib.suppress(StoreError):
            self._look(ask)
            ask(in_schema(SKIP, self._schema), ())

    def guard(self, sql: bytes, values: Sequence[bytes | None]) -> tuple[bytes, Sequence[bytes | None]]:
        """The same question, answered only on the known timeline: on others it returns no rows and does nothing.

        For a connection to a pooler, behind which every question may meet another server.
        """
        if self._known is None:
            return sql, values
        known = b"%08X" % self._known.timeline
        asked = f" WHERE $%d::{TEXT} {EQ} {TIMELINE}" % (len(values) + 1)
        return sql + asked.encode(), [*values, known]

    def _judge(self, ask: Ask, now: Server, noted: Server, known: Server) -> None:
        if now.follows(known) and now.name == noted.name:  # as before, or accepted by an operator
            if now != noted:
                self._note(ask, NOTE, noted, now)
        elif now.name != known.name:
            if not now.follows(known) or known.commits != "synchronous":
                raise _taken_over(now, known)
            self._note(ask, SUCCEED, noted, now)
        self._known = now

    def _look(self, ask: Ask) -> tuple[Server, Server]:
        ((name, commits, noted, here, place, _),) = ask(in_schema(LOOK, self._schema), ())
        if name is not None and here != place:
            with contextlib.suppress(StoreError):
                ask(in_schema(RESTORED, self._schema), [place or b""])
        if name is None:  # its answers may be old, and it may be about to be promoted
            raise psycopg.OperationalError("the server is a standby, which takes no writes")
        return Server.read(f"{name.decode()}/{(commits or b'').decode()}"), Server.read((noted or b"").decode())

    def _note(self, ask: Ask, statement: str, noted: Server, now: Server) -> None:
        with contextlib.suppress(StoreError):  # a role that may not write this works all the same
            ask(in_schema(statement, self._schema), [noted.text.encode(), now.text.encode()])


def _taken_over(now: Server, known: Server) -> StoreUnsafe:
    advice = (
        f"{BEFORE_ACCEPTING} {ACCEPT}"
        if now.follows(known)
        else "Lead the address back, or open the store again to go on with what is there."
    )
    finding = Finding(
        "refuse", "failover", f"another server has taken over ({known.name} before, now {now.name})", advice
    )
    return StoreUnsafe(f"{finding.found}: acknowledged writes may be lost. {finding.advice}", findings=[finding])
