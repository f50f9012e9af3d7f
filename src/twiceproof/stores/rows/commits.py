"""Commits batches by compare-and-set: rows are read or remembered, conditions are checked, and the service compares the
rows.

The rows that this process wrote or read last are remembered, so that most commits take one request. A remembered row is
only a guess, which the service confirms by comparing tokens: if it was wrong, nothing is written, the rows are read
again, and the conditions are checked on the current rows.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from msgspec import Struct

from ...clock import Clock, jitter
from ...errors import BadWrite, StoreUnavailable
from ...records import Address, Batch, Check, Conflict, Outcome, Record, Remove, Write, Written
from ..base import Disconnected, fits
from .row import RowStamp, due_row, grave_row, micros, pack, place_of_record, put_stamp, record_of, stamp_of, tombstone
from .server_clock import Numbers
from .table import ABSENT, ANY, Answer, Change, Landed, LaneRow, Place, RowsDiffer, SortedTable, Throttled

__all__ = ["FIRST_PAUSE", "TOMBSTONE_LIFE", "KnownRows", "RowCommitter", "live"]

PATIENCE = 10.0  # seconds for which a throttled batch is retried
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 2.0
MOST_REFUSALS = 200  # tries of a batch whose conditions hold each time they are checked
MOST_KNOWN = 16 * 1024 * 1024  # bytes of remembered rows
TOMBSTONE_LIFE = 86_400 * 1_000_000  # microseconds; far longer than clocks differ and requests are under way


class KnownRows:
    """The rows that were written or read last, by place. They may be outdated."""

    def __init__(self, most: int = MOST_KNOWN) -> None:
        self._most = most
        self.reset()

    def reset(self) -> None:
        self._mutex = threading.Lock()
        self._rows: OrderedDict[Place, tuple[LaneRow, RowStamp]] = OrderedDict()
        self._size = 0

    def get(self, place: Place) -> tuple[LaneRow, RowStamp] | None:
        return self._rows.get(place)

    def put(self, row: LaneRow, stamp: RowStamp) -> None:
        """Remember a row. An older one never replaces a newer one, since a reader may be slower than a writer."""
        with self._mutex:
            old = self._rows.get(row.place)
            if old is not None and old[1].number > stamp.number:
                return
            self._forget(row.place)
            self._rows[row.place] = row, stamp
            self._size += len(row.data)
            while self._size > self._most:
                self._forget(next(iter(self._rows)))

    def forget(self, place: Place) -> None:
        with self._mutex:
            self._forget(place)

    def _forget(self, place: Place) -> None:
        old = self._rows.pop(place, None)
        if old is not None:
            self._size -= len(old[0].data)


def live(stamp: RowStamp | None) -> Record | None:
    """Return the record of a row; None if it is a tombstone."""
    return None if stamp is None or stamp.dead else record_of(stamp)


class Base(Struct, frozen=True):
    """What a write is based on: the existing row (possibly a tombstone) and its contents."""

    row: LaneRow | None
    stamp: RowStamp | None

    @property
    def expected(self) -> object:
        return ABSENT if self.row is None else self.row.token


NOTHING = Base(None, None)


class BatchAttempt:
    """One batch being committed."""

    def __init__(self, batch: Batch, lanes: int, *, reads_all: bool) -> None:
        self.batch = batch
        self.places = {write.at: place_of_record(write.at, lanes) for write in batch.writes}
        self.bases: dict[Place, Base] = {}  # what the writes are based on: rows that were read or remembered
        self.reads_all = reads_all  # remembered rows are not used
        self.refusals = 0
        self.answer: Outcome | Exception | None = None
        self.puts: list[tuple[Place, RowStamp]] = []


class RowCommitter:
    """Commits groups of batches of different spaces."""

    def __init__(self, table: SortedTable, lanes: int, known: KnownRows, numbers: Numbers, clock: Clock) -> None:
        self.most_bytes = 0  # of one transaction; 0 = no limit
        self._table = table
        self._lanes = lanes
        self._known = known
        self._numbers = numbers
        self._clock = clock

    def commit(self, batches: Sequence[Batch]) -> Sequence[Outcome | Exception]:
        doubtful = self._table.clock.is_doubtful()  # a read brings the service's time
        attempts = [BatchAttempt(batch, self._lanes, reads_all=doubtful) for batch in batches]
        pauses = self._pauses()
        while left := [attempt for attempt in attempts if attempt.answer is None]:
            try:
                self._find_bases(left)
            except (Disconnected, Throttled) as error:  # others of the group may have landed already
                self._put_off(left, error, pauses)
                continue
            self._check(left)
            self._send([attempt for attempt in left if attempt.answer is None], pauses)
        return _settled([attempt.answer for attempt in attempts])

    # -- what the writes are based on -------------------------------------------------------------

    def _find_bases(self, attempts: Sequence[BatchAttempt]) -> None:
        """Decide which row each write is based on. Rows that are not remembered, or do not fit as they are remembered,
        are read in one request.

        The decision stays until the service has answered. Another thread may remember a newer row at any moment: if the
        write were sent with that row's token, its condition would have been checked on a different row.
        """
        wanted = {
            attempt.places[write.at]: attempt
            for attempt in attempts
            for write in attempt.batch.writes
            if not self._is_based(attempt, write)
        }
        if wanted:
            places = list(wanted)
            for place, row in zip(places, self._table.read(places), strict=True):
                wanted[place].bases[place] = self._noted(place, row)

    def _is_based(self, attempt: BatchAttempt, write: Write) -> bool:
        place = attempt.places[write.at]
        if place in attempt.bases:
            return True
        known = self._known.get(place)
        base = NOTHING if known is None else Base(*known)
        if attempt.reads_all or not fits(write, live(base.stamp)):
            return False
        attempt.bases[place] = base
        return True

    def _noted(self, place: Place, row: LaneRow | None) -> Base:
        if row is None:
            self._known.forget(place)
            return NOTHING
        stamp = stamp_of(row.data)
        self._known.put(row, stamp)
        return Base(row, stamp)

    def _check(self, attempts: Sequence[BatchAttempt]) -> None:
        now = self._table.clock.now()
        for attempt in attempts:
            for write in attempt.batch.writes:
                found = live(attempt.bases[attempt.places[write.at]].stamp)
                if attempt.answer is None and not fits(write, found):
                    attempt.answer = Conflict(write.at, found, now)

    # -- sending -----------------------------------------------------------------------------------

    def _send(self, attempts: Sequence[BatchAttempt], pauses: Iterator[float]) -> None:
        now = self._table.clock.now()
        planned: list[tuple[BatchAttempt, list[Change], int]] = []
        for attempt in attempts:
            number = self._number(attempt, micros(now))
            changes = list(self._changes(attempt, number, micros(now)))
            if self.most_bytes and sum(len(change.data or b"") for change in changes) > self.most_bytes:
                attempt.answer = _too_large(self.most_bytes)
            else:
                planned.append((attempt, changes, number))
        answers = self._table.change_each([changes for _, changes, _ in planned])
        throttled = []
        for (attempt, changes, number), answer in zip(planned, answers, strict=True):
            if isinstance(answer, Throttled):
                throttled.append((attempt, answer))
            else:
                self._settle(attempt, changes, number, now, answer)
        if throttled:
            self._wait(throttled, pauses)

    def _number(self, attempt: BatchAttempt, now: int) -> int:
        """Draw a number larger than that of every replaced row: a record's numbers grow even if clocks are set back."""
        stamps = [base.stamp for base in attempt.bases.values()]
        return self._numbers.draw(now, max((stamp.number for stamp in stamps if stamp is not None), default=0))

    def _changes(self, attempt: BatchAttempt, number: int, now: int) -> Iterator[Change]:
        attempt.puts = []
        for write in attempt.batch.writes:
            place = attempt.places[write.at]
            base = attempt.bases[place]
            if isinstance(write, Check):
                yield from self._compare(attempt, place, base, write.at, number, now)
            elif isinstance(write, Remove):
                yield from self._bury(attempt, place, base, write.at, number, now)
            else:
                old = None if base.stamp is None or base.stamp.dead else base.stamp
                stamp = put_stamp(write, old, number, attempt.batch.nonce, now)
                yield from self._put(attempt, place, base, stamp)

    def _put(self, attempt: BatchAttempt, place: Place, base: Base, stamp: RowStamp) -> Iterator[Change]:
        attempt.puts.append((place, stamp))
        yield Change(place, base.expected, pack(stamp), stamp.number)
        yield from index_changes(place[0], base.stamp, stamp)

    def _bury(
        self, attempt: BatchAttempt, place: Place, base: Base, at: Address, number: int, now: int
    ) -> Iterator[Change]:
        """Leave a tombstone: a record that is inserted again continues with larger numbers, and a late insert fails."""
        yield from self._put(attempt, place, base, tombstone(at, number))
        key, data = grave_row(place[1], number, now + TOMBSTONE_LIFE)
        yield Change((place[0], key), ANY, data, number)

    def _compare(
        self, attempt: BatchAttempt, place: Place, base: Base, at: Address, number: int, now: int
    ) -> Iterator[Change]:
        """Compare a row. If the service can only compare rows that it changes, the same row is written again."""
        if self._table.checks:
            yield Change(place, base.expected, check=True)
        elif base.row is None or base.stamp is None:
            yield from self._bury(attempt, place, base, at, number, now)
        else:
            attempt.puts.append((place, base.stamp))
            yield Change(place, base.expected, base.row.data, base.stamp.number)

    def _settle(
        self, attempt: BatchAttempt, changes: Sequence[Change], number: int, now: float, answer: Answer
    ) -> None:
        if isinstance(answer, Landed):
            self._remember(attempt, changes, answer)
            attempt.answer = Written(str(number), number, now)
            return
        for place in attempt.places.values():
            self._known.forget(place)
        if isinstance(answer, RowsDiffer):  # the next round checks the conditions on the current rows
            attempt.refusals, attempt.reads_all = attempt.refusals + 1, True
            if attempt.refusals > MOST_REFUSALS:
                attempt.answer = _contended()
            attempt.bases = {place: self._noted(place, row) for place, row in answer.found.items()}
        else:
            attempt.answer = answer

    def _remember(self, attempt: BatchAttempt, changes: Sequence[Change], landed: Landed) -> None:
        tokens = {change.place: token for change, token in zip(changes, landed.tokens, strict=True)}
        data = {change.place: change.data for change in changes}
        for place, stamp in attempt.puts:
            self._known.forget(place)
            token, packed = tokens[place], data[place]
            if token is not None and packed is not None:
                self._known.put(LaneRow(place, token, packed), stamp)

    # -- waiting -----------------------------------------------------------------------------------

    def _pauses(self) -> Iterator[float]:
        deadline = self._clock.monotonic() + PATIENCE
        pause = FIRST_PAUSE
        while self._clock.monotonic() < deadline:
            yield jitter(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _put_off(self, left: Sequence[BatchAttempt], error: Disconnected | Throttled, pauses: Iterator[float]) -> None:
        """Rows could not be read: nothing of these batches was written, whatever became of the others."""
        if isinstance(error, Throttled):
            self._wait([(attempt, error) for attempt in left], pauses)
            return
        for attempt in left:
            attempt.answer = Disconnected(error, sent=False)

    def _wait(self, throttled: Sequence[tuple[BatchAttempt, Throttled]], pauses: Iterator[float]) -> None:
        """Nothing was done: wait as long as the service demands, if there is time, and retry these batches."""
        pause = next(pauses, None)
        asked = max((error.after or 0.0 for _, error in throttled), default=0.0)
        if pause is None or asked > PATIENCE:
            for attempt, error in throttled:
                attempt.answer = _busy(error)
            return
        self._clock.sleep(max(pause, asked))


def index_changes(lane: int, old: RowStamp | None, new: RowStamp) -> Iterator[Change]:
    """Return the changes to the index of due records, made in the same transaction as the record's."""
    before, was = due_row(old) if old is not None and old.due_at else (None, b"")
    after, data = due_row(new) if new.due_at else (None, b"")
    if before is not None and before != after:
        yield Change((lane, before), ANY)
    if after is not None and (before, was) != (after, data):  # queues of one class share a key, and differ in the data
        yield Change((lane, after), ANY, data, new.number)


def _settled(answers: Sequence[Outcome | Exception | None]) -> Sequence[Outcome | Exception]:
    """Return the answers; if some batches have none, raise, so that these are retried."""
    down = [answer for answer in answers if isinstance(answer, Disconnected)]
    if down:
        told = [None if isinstance(answer, Disconnected) else answer for answer in answers]
        raise Disconnected(down[0], sent=any(error.sent for error in down), answers=told)
    return [answer for answer in answers if answer]


def _busy(error: Throttled) -> StoreUnavailable:
    return StoreUnavailable(
        f"The store takes no more requests right now ({error}). Nothing was written. Try again later, or give it more "
        "capacity.",
        unsure=False,
        cause=str(error),
    )


def _contended() -> StoreUnavailable:
    return StoreUnavailable(
        "Others change the same records all the time. Nothing was written. Try again.", unsure=False, held=True
    )


def _too_large(most: int) -> BadWrite:
    return BadWrite(f"These writes together have more than {most:,} bytes, which this store does not take; split them.")
