"""Messages, relays and senders that die at a given point, and what a broker outside has received."""

from __future__ import annotations

import asyncio  # here and below: imported before forks, so that children need not import them
import contextlib
import logging
import sqlite3
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.acceptance.children import Child, die
from tests.acceptance.places import Place, SqlitePlace
from twiceproof import App, Retry
from twiceproof.brokers.base import Confirmed, OutgoingMessage, Publication, Refused
from twiceproof.flows import effect_step, sending
from twiceproof.outbox import transaction_outbox
from twiceproof.outbox.relay import TargetRelay
from twiceproof.records import Written

# Where a relay dies, in the order of what it does.
HANDED_OUT, TAKEN, BEFORE = "after messages were handed out", "after lanes were taken", "before it publishes"
MIDDLE, UNHEARD = "in the middle of publishing", "published, and no confirmation heard"
CONFIRMED, HALF_MARKED, MARKED = "confirmed, and nothing marked", "messages marked, lanes not", "all marked"
POINTS = (HANDED_OUT, TAKEN, BEFORE, MIDDLE, UNHEARD, CONFIRMED, HALF_MARKED, MARKED)
TWICE = frozenset((MIDDLE, UNHEARD, CONFIRMED, HALF_MARKED))  # where a message may be published again
IN_BLOCK, BEFORE_COMMIT, COMMITTED = "in the block", "after the block, before the commit", "after the commit"
ENDS = (IN_BLOCK, BEFORE_COMMIT, COMMITTED)

LOADED = (asyncio, effect_step, sending, transaction_outbox)
ALONE, ORDERED, MEANWHILE = ("u1", "u2", "u3"), ("l1", "l2", "l3"), "l4"
LONG_AFTER = 100_000.0


def never() -> None:
    """Used where no process dies."""


class LogBroker:
    """A broker whose memory is a file: one line for each message that it took. It refuses `u2` the first time."""

    dedupe = 0.0

    def __init__(self, file: Path, at: Callable[[str], None], meanwhile: Callable[[], None]) -> None:
        self._file = file
        self._at = at
        self._meanwhile = meanwhile

    def publish(self, messages: Sequence[OutgoingMessage], patience: float) -> list[Publication]:
        self._at(BEFORE)
        answers = []
        for number, message in enumerate(messages):
            if number == len(messages) // 2:
                self._at(MIDDLE)
            answers.append(self._take(message))
        self._meanwhile()
        self._at(UNHEARD)
        return answers

    def _take(self, message: OutgoingMessage) -> Publication:
        word = "taken"
        if message.key.endswith("u2") and f"refused {message.key}\n" not in self._seen():
            word = "refused"
        with self._file.open("a") as file:
            file.write(f"{word} {message.key}\n")
        return Confirmed() if word == "taken" else Refused("not yet")

    def _seen(self) -> str:
        return self._file.read_text() if self._file.exists() else ""

    def close(self) -> None:
        """There is nothing to close: the broker is a file."""


class DeadlyEngine:
    """Reports what a relay has just done, or is about to do."""

    def __init__(self, inner: Any, at: Callable[[str], None]) -> None:
        self._inner = inner
        self._at = at
        self._commits = 0
        self.counting = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def due(self, *args: Any) -> Any:
        found = self._inner.due(*args)
        self.counting = True
        self._at(HANDED_OUT)
        return found

    def commit(self, batches: Any) -> Any:
        """The first commit takes lanes, then messages are marked, then lanes."""
        if not self.counting:
            return self._inner.commit(batches)
        self._commits += 1
        if self._commits == 2:
            self._at(CONFIRMED)
        elif self._commits == 3:
            self._at(HALF_MARKED)
        done = self._inner.commit(batches)
        if self._commits == 1:
            self._at(TAKEN)
        elif self._commits > 2 and all(isinstance(answer, Written) for answer in done):
            self._at(MARKED)  # the first attempt was to remove a lane that has got another message
        return done


class RelayStage:
    """One store, a tenant for each case, and a broker's log beside it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.log = place.directory / "broker"
        self.wrong: list[str] = []

    # -- in processes of their own ---------------------------------------------------------------

    def app(self, at: Callable[[str], None] = lambda point: None, meanwhile: Callable[[], None] = never) -> App:
        app = self.place.app(lambda engine: DeadlyEngine(engine, at))
        app.broker("main", LogBroker(self.log, at, meanwhile), retry=Retry(attempts=50, first=1.0))
        app.route("t", to="main")
        return app

    def send(self, tenants: Sequence[str]) -> None:
        with self.app() as app:
            for tenant in tenants:
                for name in ALONE:
                    app.of(tenant).send("t", {"name": name}, key=f"{tenant}-{name}")
                for name in ORDERED:
                    app.of(tenant).send("t", {"name": name}, key=f"{tenant}-{name}", order="o")

    def relay(self, tenant: str, point: str) -> None:
        """Publish what one tenant has sent, and die at the given point. While it publishes, one more message is
        sent.
        """

        def meanwhile() -> None:
            with self.app() as sender:
                sender.of(tenant).send("t", {"name": MEANWHILE}, key=f"{tenant}-{MEANWHILE}", order="o")

        app = self.app(lambda reached: die() if reached == point else None, meanwhile)
        target = app.routing.targets["main"]
        TargetRelay(app.store, target, lambda: [tenant], clock=app.clock, roll=lambda: 0.5).run_once()

    def recover(self, tenants: Sequence[str]) -> None:
        """Long after: everything that was handed out is due again."""
        with self.app() as app:
            relay = TargetRelay(
                app.store, app.routing.targets["main"], lambda: tenants, clock=app.clock, roll=lambda: 0.5
            )
            for _ in range(40):
                if relay.run_once() > 0:
                    break
            relay.close()

    # -- the user's own transactions -------------------------------------------------------------

    def connect(self) -> Any:
        if isinstance(self.place, SqlitePlace):
            return sqlite3.connect(self.place.directory / "claims.db")
        import psycopg

        return psycopg.connect(self.place.url)

    def make_table(self) -> None:
        with self.app(), contextlib.closing(self.connect()) as db:
            db.execute("CREATE TABLE stock (name text)")
            db.commit()

    def transact(self, tenant: str, end: str, way: Callable[..., None]) -> None:
        """Insert a row and send two messages with it, in a transaction of this way; die at this point."""
        from tests.faults.catalogue.sender_ways import DiesBeforeCommit, SenderLedger

        def messages(db: Any, outbox: Any) -> None:
            for order in (None, "o"):
                outbox.send("t", {}, key=f"{tenant}-{order}", order=order)
            if end == IN_BLOCK:
                die()

        way(
            SenderLedger(self.place, self.app().of(tenant)),
            DiesBeforeCommit() if end == BEFORE_COMMIT else True,
            messages,
        )
        die()

    def rows(self) -> int:
        with contextlib.closing(self.connect()) as db:
            (count,) = db.execute("SELECT count(*) FROM stock").fetchone()
        return int(count)

    def taken(self) -> dict[str, list[str]]:
        """Return what the broker took, by tenant, in order."""
        found: dict[str, list[str]] = {}
        for line in self.log.read_text().splitlines() if self.log.exists() else ():
            word, key = line.split(" ")
            if word == "taken":
                tenant, _, name = key.partition("-")
                found.setdefault(tenant, []).append(name)
        return found


def apart(work: Callable[[], None]) -> int:
    """In a process of its own. Return how it ended: minus the signal that killed it."""

    def quietly(child: Child) -> None:
        logging.disable(logging.ERROR)
        warnings.simplefilter("ignore")
        work()

    return Child(quietly).end()
