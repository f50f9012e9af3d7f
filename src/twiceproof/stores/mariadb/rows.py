"""Statements; writes to rows and back.

A statement is a text with a `%s` for each value. Every statement on records names its index: for a small table the
server would otherwise read, and lock, all of it. Values to write or look for are given as a derived table `w`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...records import Address, Batch, Check, Conflict, Insert, Record, Remove, Replace, Write, Written
from ..base import SPACE_BUSY, SpaceBusy, condition_number, fits

__all__ = [
    "COLUMNS",
    "NONCE",
    "NOW",
    "PRESENT",
    "STEP",
    "VERSION",
    "LedgerSql",
    "Row",
    "Statement",
    "inserts_any",
    "is_lone",
    "lone_inserts",
    "lone_replaces",
    "marked",
    "misfit_of",
    "record_of",
    "text_of",
    "written",
]

Row = Sequence[Any]
Statement = tuple[str, Sequence[Any]]

# Whatever the session's time zone is. A statement begins when those before it have their locks.
NOW = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1e6"
PRESENT = f"CAST(LEAST(({NOW} - 1577836800) * 4194304, 4503599627370496) AS SIGNED)"
AT, NUMBER, AGAIN = "@twiceproof_at", "@twiceproof_number", "@twiceproof_again"
COLUMNS = (
    "r.id, r.space, r.kind, r.`key`, r.state, r.version, r.fence, r.nonce, r.created_at, r.updated_at, r.lease_until,"
    " r.queue, r.due_at, r.body"
)
VERSION, NONCE = (COLUMNS.split(", ").index(name) for name in ("r.version", "r.nonce"))  # places in a row
TOLD = COLUMNS.replace("r.", "").removesuffix(", body")
MISFIT = "45000"
# A cluster may roll a transaction back between two statements of a packet and tell of it by no error: the next one
# would commit by itself, and COMMIT find nothing to do.
ALIVE = "IF @@in_transaction = 0 THEN SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213; END IF"
BEFORE = "@twiceproof_before"
LAST_WRITTEN = "WSREP_LAST_WRITTEN_GTID()"  # by this session
STEP = 256  # numbers between two draws: a commit needs one for each of its batches
NUMBERED = ("version", "fence")

PUT = f"(%s,%s,%s,%s,{NUMBER}+%s,IF(%s,{NUMBER}+%s,0),%s,{AT},{AT},{AT}+%s,%s,{AT}+%s,%s)"
PUT_NAMES = "space, kind, `key`, state, version, fence, nonce, created_at, updated_at, lease_until, queue, due_at, body"
ADDRESS = "_binary%s AS space, _binary%s AS kind, _binary%s AS `key`"
ADDRESS_ROW = "_binary%s,_binary%s,_binary%s"
JOINED = "r.space = w.space AND r.kind = w.kind AND r.`key` = w.`key`"
HOLDS = "CASE WHEN w.known > 0 THEN r.fence = w.known ELSE r.version = -w.known END"


def derived(first: str, row: str, rows: Sequence[Row]) -> Statement:
    """A derived table `w`: the first row names the columns."""
    more = f" UNION ALL VALUES {','.join([f'({row})'] * (len(rows) - 1))}" if len(rows) > 1 else ""
    return f"(SELECT {first}{more}) AS w", [value for one in rows for value in one]


def lone_inserts(batches: Sequence[Batch]) -> list[tuple[int, Batch]]:
    """Return the batches that are a single Insert, with their positions in the group."""
    return [(n, batch) for n, batch in enumerate(batches, 1) if is_lone(batch) and isinstance(batch.writes[0], Insert)]


def lone_replaces(batches: Sequence[Batch]) -> list[tuple[int, Batch]]:
    return [(n, batch) for n, batch in enumerate(batches, 1) if is_lone(batch) and isinstance(batch.writes[0], Replace)]


def is_lone(batch: Batch) -> bool:
    """Whether it is a single write, which lands or not by its own statement, so that nothing has to be rolled back."""
    return len(batch.writes) == 1 and isinstance(batch.writes[0], Insert | Replace)


def inserts_any(batch: Batch) -> bool:
    return any(isinstance(write, Insert) for write in batch.writes)


def marked(batch: Batch) -> Insert | Replace | None:
    """Return a write that leaves the batch's nonce in its record."""
    return next((write for write in batch.writes if isinstance(write, Insert | Replace)), None)


def written(batch: Batch, place: int, number: int, again: int | None, now: float) -> Written:
    """Return a landed batch with its number: after an insert the later one, if others drew numbers in between."""
    moved = again is not None and again > number + STEP and inserts_any(batch)
    first = again if moved and again is not None else number
    return Written(str(first + place), first + place, now)


def misfit_of(batch: Batch, found: Mapping[Address, Record], number: int, now: float) -> Conflict | SpaceBusy | None:
    """Return why a batch cannot be written, by the locked rows. None: it can."""
    there = [found.get(write.at) for write in batch.writes]
    for write, record in zip(batch.writes, there, strict=True):
        if not fits(write, record):
            return Conflict(write.at, record, now)
    # On Galera a node whose clock is behind waits until its numbers are larger than those of the records.
    return SPACE_BUSY if any(record and int(record.version) > number for record in there) else None


def _ours(column: str) -> str:
    """Return the condition that a number is one of those that the commit drew first."""
    return f"(r.{column} > {NUMBER} AND r.{column} <= {NUMBER} + {STEP})"


class LedgerSql:
    """The statements of one ledger. `now` is the store's clock; tests replace it.

    On Galera each node has its own sequence: there the numbers are the nodes' time, and a row with a higher number is
    not written until the time has passed it.
    """

    def __init__(self, database: str, *, now: str = NOW, galera: bool = False) -> None:
        self.ledger = f"`{database.replace('`', '``')}`".replace("%", "%%")
        self.records = f"{self.ledger}.twiceproof_records AS r"
        self.at = f"{self.records} FORCE INDEX (twiceproof_records_at)"
        self.now = now
        self.galera = galera
        drawn = PRESENT if galera else f"NEXTVAL({self.ledger}.twiceproof_number)"
        self.stamp: Statement = (f"SELECT {AT} := {now}, {NUMBER} := {drawn}", ())
        self.stamp_again: Statement = (f"SELECT {AGAIN} := {drawn}", ())
        self.beginning: list[Statement] = [("BEGIN", ())]
        self.ending: list[Statement] = [("COMMIT", ())]
        if galera:
            self.beginning.append((f"SET {BEFORE} = {LAST_WRITTEN}", ()))
            self.ending = [(ALIVE, ()), *self.ending, (f"SELECT {LAST_WRITTEN} <> {BEFORE}", ())]
        self._newer = f" OR r.version >= {NUMBER} + w.place" if galera else ""
        self._older = f" AND r.version < {NUMBER} + w.place" if galera else ""

    def fact(self, name: str) -> str:
        """Return the statement that reads a fact about this ledger."""
        return f"SELECT value FROM {self.ledger}.twiceproof_facts WHERE name = '{name}'"  # noqa: S608

    # -- commits ---------------------------------------------------------------------------------

    def commit(self, batches: Sequence[Batch]) -> list[Statement]:
        """Return one transaction for all batches; it is refused as a whole if a batch of several writes does not fit.
        Its rows are the time and the number; the records of single inserts, landed or not; and the positions of other
        single writes that did not land, with the row found instead.
        """
        inserts, replaces = lone_inserts(batches), lone_replaces(batches)
        strict = [(place, batch) for place, batch in enumerate(batches, 1) if not is_lone(batch)]
        return [
            *self.beginning,
            self.stamp,
            *(self._refuse_misfits(strict) if strict else ()),
            *self.together([*self.inserts(inserts, told=True), *self.writes(strict), *self._replaces(replaces)]),
            *([self._misfits(replaces)] if replaces else ()),
            *self.renumbering(batches),
            *self.ending,
            *self.proof(list(enumerate(batches, 1))),
        ]

    def together(self, statements: Sequence[Statement]) -> list[Statement]:
        """Return statements that do nothing where the transaction is gone in which their conditions were checked."""
        if not self.galera:
            return list(statements)
        return [(f"IF @@in_transaction THEN {sql}; END IF", values) for sql, values in statements]

    def proof(self, placed: Sequence[tuple[int, Batch]]) -> list[Statement]:
        """On Galera, ask behind the COMMIT which of the batches that leave a nonce are there."""
        rows = [(*_parts(write.at), batch.nonce, place) for place, batch in placed if (write := marked(batch))]
        if not rows or not self.galera:
            return []
        w, values = derived(f"{ADDRESS}, _binary%s AS nonce, %s AS place", f"{ADDRESS_ROW},_binary%s,%s", rows)
        return [(f"SELECT w.place FROM {w} STRAIGHT_JOIN {self.at} ON {JOINED} WHERE r.nonce = w.nonce", values)]  # noqa: S608

    def inserts(self, lone: Sequence[tuple[int, Batch]], *, told: bool = False) -> list[Statement]:
        """Insert batches of one Insert each; existing records are not changed. `told`: return the rows as they are
        afterwards, in order, without the bodies of those that we wrote.
        """
        ours = f"version > {NUMBER} AND version <= {NUMBER} + {max((place for place, _ in lone), default=0)}"
        rows = f" RETURNING {TOLD}, IF({ours}, '', body)" if told else ""
        return self._inserts(lone, f" ON DUPLICATE KEY UPDATE id = id{rows}")

    def writes(self, strict: Sequence[tuple[int, Batch]]) -> list[Statement]:
        """Return the writes of batches whose conditions hold, on locked rows. A row that was inserted meanwhile is
        refused.
        """
        return [*self._inserts(strict, ""), *self._replaces(strict), *self._removes(strict), *self._checks(strict)]

    def renumbering(self, batches: Sequence[Batch]) -> list[Statement]:
        """Once the new rows are locked, a number is drawn again; if others drew in between, the rows get the later one.

        Otherwise a row could get a smaller number than the one that another transaction has removed in between.
        """
        if not any(inserts_any(batch) for batch in batches):
            return []
        sql, values = self.renumber(batches)
        return [self.stamp_again, (f"IF {AGAIN} > {NUMBER} + {STEP} THEN {sql}; END IF", values)]

    def renumber(self, batches: Sequence[Batch]) -> Statement:
        """Give the records of these batches the later number. A record of another writer keeps its own."""
        rows = [
            (*_parts(write.at), batch.nonce)
            for batch in batches
            if inserts_any(batch)
            for write in batch.writes
            if isinstance(write, Insert | Replace)
        ]
        w, values = derived(f"{ADDRESS}, _binary%s AS nonce", f"{ADDRESS_ROW},_binary%s", rows)
        moved = ", ".join(f"r.{name} = IF({_ours(name)}, r.{name} - {NUMBER} + {AGAIN}, r.{name})" for name in NUMBERED)
        own = f"r.nonce = w.nonce AND {_ours('version')}"
        return f"UPDATE {w} STRAIGHT_JOIN {self.at} ON {JOINED} SET {moved} WHERE {own}", values  # noqa: S608

    def _inserts(self, batches: Sequence[tuple[int, Batch]], otherwise: str) -> list[Statement]:
        rows = [
            self._inserted(write, place, batch.nonce)
            for place, batch in batches
            for write in batch.writes
            if isinstance(write, Insert) or (isinstance(write, Check) and write.absent)
        ]
        if not rows:
            return []
        into = self.records.partition(" ")[0]
        sql = f"INSERT INTO {into} ({PUT_NAMES}) VALUES {','.join([PUT] * len(rows))}{otherwise}"  # noqa: S608
        return [(sql, [value for row in rows for value in row])]

    def _inserted(self, write: Insert | Check, place: int, nonce: str) -> Row:
        """A check for absence inserts a record and removes it again, so that no other transaction can insert it
        meanwhile.
        """
        put = write if isinstance(write, Insert) else Insert(write.at, "")
        at = put.at
        return (
            *(at.space, at.kind, at.key, put.state, place, int(put.draw), place, nonce),
            *(put.lease, put.queue, put.due_in, put.body),
        )

    def _replaces(self, batches: Sequence[tuple[int, Batch]]) -> list[Statement]:
        rows = [
            (
                *(write.at.space, write.at.kind, write.at.key, condition_number(write), place, write.state),
                *(int(write.draw), batch.nonce, write.lease, write.queue, write.due_in, write.body),
            )
            for place, batch in batches
            for write in batch.writes
            if isinstance(write, Replace)
        ]
        if not rows:
            return []
        names = ("known", "place", "state", "draw", "nonce", "lease", "queue", "due", "body")
        first = ", ".join([ADDRESS, *(f"%s AS {name}" for name in names)])
        w, values = derived(first, ",".join([ADDRESS_ROW, *["%s"] * len(names)]), rows)
        sql = (
            f"UPDATE {w} STRAIGHT_JOIN {self.at} ON {JOINED} SET r.state = w.state, r.version = {NUMBER} + w.place,"  # noqa: S608
            f" r.fence = IF(w.draw, {NUMBER} + w.place, r.fence), r.nonce = w.nonce, r.updated_at = {AT},"
            f" r.lease_until = {AT} + w.lease, r.queue = w.queue, r.due_at = {AT} + w.due,"
            f" r.body = COALESCE(w.body, r.body) WHERE {HOLDS}{self._older}"
        )
        return [(sql, values)]

    def _removes(self, batches: Sequence[tuple[int, Batch]]) -> list[Statement]:
        gone = [
            write.at
            for _, batch in batches
            for write in batch.writes
            if isinstance(write, Remove) or (isinstance(write, Check) and write.absent)
        ]
        if not gone:
            return []
        w, values = _addresses(gone)
        return [(f"DELETE r FROM {w} STRAIGHT_JOIN {self.at} ON {JOINED}", values)]

    def _checks(self, batches: Sequence[tuple[int, Batch]]) -> list[Statement]:
        """Write the rows that are only checked: Galera detects conflicts of writes, not of reads or locks."""
        checked = [w.at for _, batch in batches for w in batch.writes if isinstance(w, Check) and not w.absent]
        if not checked or not self.galera:
            return []
        w, values = _addresses(checked)
        return [(f"UPDATE {w} STRAIGHT_JOIN {self.at} ON {JOINED} SET r.checks = MOD(r.checks + 1, 1000000)", values)]  # noqa: S608

    def _refuse_misfits(self, batches: Sequence[tuple[int, Batch]]) -> list[Statement]:
        """Lock every row that has a condition. Without WHERE: the server would release the rows that it excludes."""
        rows = [
            (write.at.space, write.at.kind, write.at.key, _known(write), place)
            for place, batch in batches
            for write in batch.writes
        ]
        w, values = derived(f"{ADDRESS}, %s AS known, %s AS place", f"{ADDRESS_ROW},%s,%s", rows)
        misfit = (
            "CASE WHEN w.known IS NULL THEN r.id IS NOT NULL WHEN r.id IS NULL THEN TRUE"
            f" ELSE NOT ({HOLDS}){self._newer} END"
        )
        count = f"SELECT COUNT(CASE WHEN {misfit} THEN 1 END) INTO @twiceproof_misfits"
        return [
            (f"{count} FROM {w} LEFT JOIN {self.at} ON {JOINED} FOR UPDATE", values),
            (f"IF @twiceproof_misfits > 0 THEN SIGNAL SQLSTATE '{MISFIT}'; END IF", ()),
        ]

    def _misfits(self, lone: Sequence[tuple[int, Batch]]) -> Statement:
        rows = [(*_parts(batch.writes[0].at), place) for place, batch in lone]
        w, values = derived(f"{ADDRESS}, %s AS place", f"{ADDRESS_ROW},%s", rows)
        found = f"SELECT w.place, {COLUMNS} FROM {w} LEFT JOIN {self.at} ON {JOINED}"  # noqa: S608
        return f"{found} WHERE r.version IS NULL OR r.version <> {NUMBER} + w.place", values

    # -- reads -----------------------------------------------------------------------------------

    def fetch(self, addresses: Sequence[Address], *, lock: bool = False) -> Statement:
        """Return the position of each address in the list with its row, and nothing where there is no record."""
        rows = [(*_parts(at), place) for place, at in enumerate(addresses)]
        w, values = derived(f"{ADDRESS}, %s AS place", f"{ADDRESS_ROW},%s", rows)
        found = f"SELECT w.place, {COLUMNS} FROM {w} STRAIGHT_JOIN {self.at} ON {JOINED}"  # noqa: S608
        return found + (" FOR UPDATE NOWAIT" if lock else ""), values

    def clock(self) -> Statement:
        return f"SELECT {self.now}", ()

    def beside(self, spaces: Sequence[str], kinds: Sequence[str], limit: int) -> Statement:
        marks = ",".join(["%s"] * len(kinds))
        one = f"(SELECT {COLUMNS} FROM {self.at} WHERE r.space = %s AND r.kind IN ({marks})"  # noqa: S608
        one += " ORDER BY r.kind, r.`key` LIMIT %s)"
        return " UNION ALL ".join([one] * len(spaces)), [v for space in spaces for v in (space, *kinds, limit)]

    # -- what is due -----------------------------------------------------------------------------

    def heads(self, kind: str, queues: Iterable[str], most: int) -> Statement:
        """Return the first due record of each of these queues: its id and its time."""
        by_queue = f"{self.records} FORCE INDEX (twiceproof_records_due)"
        one = f"(SELECT r.id, r.due_at FROM {by_queue} WHERE r.kind = %s AND r.queue = %s AND r.due_at IS NOT NULL"  # noqa: S608
        one += " ORDER BY r.due_at, r.id LIMIT %s)"
        given = list(queues)
        return " UNION ALL ".join([one] * len(given)), [value for queue in given for value in (kind, queue, most)]

    def first_of_all(self, kind: str) -> Statement:
        """Return the first time of each queue with waiting records, in the order of the index."""
        by_queue = f"{self.records} FORCE INDEX (twiceproof_records_due)"
        return (
            f"SELECT r.queue, MIN(r.due_at) AS first FROM {by_queue} WHERE r.kind = %s AND r.due_at > -1e300"  # noqa: S608
            " GROUP BY r.queue ORDER BY first",
            [kind],
        )

    def waiting(self, kind: str, most: int) -> Statement:
        """Return what is due first, now or later, in the queues whose names have a slash."""
        by_time = f"{self.records} FORCE INDEX (twiceproof_records_time)"
        return (
            f"SELECT r.queue, r.work_at FROM {by_time} WHERE r.kind = %s AND r.work_at IS NOT NULL"  # noqa: S608
            " ORDER BY r.work_at LIMIT %s",
            [kind, most],
        )

    def lock_due(self, ids: Sequence[int], queues: Sequence[str], limit: int) -> list[Statement]:
        """Lock what is still due, and still in these queues: it was found without locks."""
        older = f" AND r.version < {NUMBER}" if self.galera else ""
        chosen = f"SELECT {COLUMNS} FROM {self.records} FORCE INDEX (PRIMARY) WHERE r.id IN ({_marks(ids)})"  # noqa: S608
        chosen += f" AND r.queue IN ({_marks(queues)}) AND r.due_at <= {AT}{older}"
        return [
            *self.beginning,
            self.stamp,
            (f"{chosen} ORDER BY r.due_at, r.id LIMIT %s FOR UPDATE SKIP LOCKED", [*ids, *queues, limit]),
        ]

    def hide(self, ids: Sequence[int], seconds: float) -> list[Statement]:
        hidden = f"UPDATE {self.records} SET r.version = {NUMBER}, r.due_at = {AT} + %s WHERE r.id IN ({_marks(ids)})"  # noqa: S608
        return [*self.together([(hidden, [seconds, *ids])]), *self.ending]


def _marks(values: Sequence[object]) -> str:
    return ",".join(["%s"] * len(values))


def _parts(at: Address) -> tuple[str, str, str]:
    return at.space, at.kind, at.key


def _addresses(addresses: Sequence[Address]) -> Statement:
    return derived(ADDRESS, ADDRESS_ROW, [_parts(at) for at in addresses])


def _known(write: Write) -> int | None:
    """None: no record may exist."""
    if isinstance(write, Insert) or (isinstance(write, Check) and write.absent):
        return None
    return condition_number(write)


def record_of(row: Row) -> Record:
    _, space, kind, key, state, version, fence, nonce, created, updated, lease, queue, due, body = row
    at = Address(text_of(space), text_of(kind), text_of(key))
    return Record(
        at,
        text_of(body),
        text_of(state),
        str(version),
        fence,
        text_of(nonce),
        created,
        updated,
        lease,
        text_of(queue),
        due,
    )


def text_of(value: Any) -> str:
    """Return text: a user's own connection may decode what is stored as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
