"""Steady load with a short `keep` on PostgreSQL: does the table stay flat, and what do claims feel of the sweeps?

`python -m bench.sections.steady --seconds 480`. The server has PostgreSQL's own settings for autovacuum. Three ledgers
take the same calls side by side: one as the schema makes it, one whose table is vacuumed at fewer dead rows, and as a
control one that is never swept. Sweeping is switched on and off in turns, so that both latencies are of the same table,
load and minutes; what the control's calls take in the same turns is what the rest of the machine changes.

`--naptime 5 --turn 3` lets autovacuum look every five seconds instead of every minute: what an hour does to the files,
sixty vacuums, is then done in five minutes.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable
from functools import partial

import click
import psycopg
import psycopg.sql
from tests.servers import PostgresServer

from twiceproof import App
from twiceproof.claims.retention import sweep
from twiceproof.operations import block

__all__ = ["main"]

KEEP = 5.0  # seconds
TABLE = "twiceproof.twiceproof_records"
TIGHTER = f"ALTER TABLE {TABLE} SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000)"
SIZE = f"SELECT pg_total_relation_size('{TABLE}'), pg_relation_size('{TABLE}'), (SELECT count(*) FROM {TABLE})"


class Ledger:
    """One database, its calls' latencies by whether a sweep was allowed then, and its size at the end of each turn."""

    def __init__(self, name: str, url: str, *, is_swept: bool = True) -> None:
        self.name, self.url, self.is_swept = name, url, is_swept
        self.app = App(url, best_effort=True)
        self.app._housekeeper.stop()  # sweeps are made here, in their turns
        self.latencies: dict[bool, list[float]] = {True: [], False: []}
        self.sizes: list[tuple[float, int, int, int]] = []
        self.forgotten = 0

        @self.app.once(key="order:{number}", keep=KEEP)
        async def order(number: int) -> int:
            return number

        self._order = order

    async def call(self, number: int, sweeping: bool) -> None:
        began = time.perf_counter()
        await self._order(number)
        self.latencies[sweeping].append(time.perf_counter() - began)

    def sweep_until(self, over: Callable[[], bool]) -> None:
        """On a thread of its own, as an app sweeps."""
        while not over():
            swept = block(sweep(self.app.store))
            self.forgotten += swept.forgotten
            if swept.total == 0:
                time.sleep(0.2)

    def weigh(self, at: float) -> None:
        with psycopg.connect(self.url) as db:
            row = db.execute(SIZE).fetchone()
        assert row is not None
        self.sizes.append((at, *row))


@click.command()
@click.option("--seconds", default=480.0, help="How long the load lasts.")
@click.option("--rate", default=150, help="Calls per second for each of the three ledgers.")
@click.option("--turn", default=15.0, help="Seconds with sweeping, and as many without.")
@click.option("--naptime", default=60, help="Seconds between two looks of autovacuum.")
def main(seconds: float, rate: int, turn: float, naptime: int) -> None:
    """Measure a PostgreSQL ledger under steady load while it forgets."""
    with PostgresServer(disk=True) as server:
        with psycopg.connect(server.create_database(), autocommit=True) as db:
            db.execute(psycopg.sql.SQL("ALTER SYSTEM SET autovacuum_naptime = {}").format(naptime))
            db.execute("SELECT pg_reload_conf()")
        ledgers = [
            Ledger("as made", server.create_database()),
            Ledger("tighter", server.create_database()),
            Ledger("never swept", server.create_database(), is_swept=False),
        ]
        try:
            for ledger in ledgers:
                asyncio.run(ledger.call(-1, True))
            with psycopg.connect(ledgers[1].url) as db:
                db.execute(TIGHTER)
            asyncio.run(_load(ledgers, seconds, rate, turn))
            for ledger in ledgers:
                _show(ledger)
                with psycopg.connect(ledger.url) as db:
                    print("  autovacuums:", db.execute(VACUUMS).fetchone())
        finally:
            for ledger in ledgers:
                ledger.app.close()


VACUUMS = "SELECT autovacuum_count, n_dead_tup FROM pg_stat_user_tables WHERE relname = 'twiceproof_records'"


def _is_past(moment: float) -> bool:
    return time.perf_counter() >= moment


async def _load(ledgers: list[Ledger], seconds: float, rate: int, length: float) -> None:
    """Open loop: a call starts when its time has come, however slow the ones before it are."""
    began, numbers, calls = time.perf_counter(), itertools.count(), set[asyncio.Task[None]]()
    for turn in itertools.count():
        at = time.perf_counter() - began
        if at >= seconds:
            break
        sweeping, until = turn % 2 == 1, began + (turn + 1) * length
        over = partial(_is_past, until)
        sweepers = [ledger for ledger in ledgers if ledger.is_swept and sweeping]
        sweeps = [asyncio.create_task(asyncio.to_thread(ledger.sweep_until, over)) for ledger in sweepers]
        while not over():
            number = next(numbers)
            await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
            for ledger in ledgers:
                task = asyncio.create_task(ledger.call(number, sweeping))
                calls.add(task)
                task.add_done_callback(calls.discard)
        await asyncio.gather(*sweeps)
        if sweeping:
            for ledger in ledgers:
                await asyncio.to_thread(ledger.weigh, time.perf_counter() - began)
                print(ledger.name, *ledger.sizes[-1], flush=True)
    await asyncio.gather(*calls)


def _show(ledger: Ledger) -> None:
    for sweeping, taken in ledger.latencies.items():
        cuts = statistics.quantiles(taken, n=100)
        named = "beside sweeps" if sweeping else "no sweep"
        print(f"{ledger.name}, {named}: {len(taken)} calls, p50 {cuts[49] * 1e3:.1f} ms, p99 {cuts[98] * 1e3:.1f} ms")
    half = ledger.sizes[len(ledger.sizes) // 2 :]
    print(f"{ledger.name}: forgotten {ledger.forgotten}; last size / size at half time: {half[-1][1] / half[0][1]:.2f}")


if __name__ == "__main__":
    main()
