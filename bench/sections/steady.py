"""Steady load with a short `keep` on PostgreSQL: does the table stay flat, and what do claims feel of the sweeps?

`python -m bench.sections.steady --seconds 480`. The server has PostgreSQL's own settings for autovacuum. Two ledgers
take the same calls side by side: one as the schema makes it, one whose table is vacuumed at fewer dead rows. Sweeping
is switched on and off in turns, so that both latencies are of the same table, load and minutes.
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
from tests.servers import PostgresServer

from twiceproof import App
from twiceproof.claims.retention import sweep
from twiceproof.operations import await_

__all__ = ["main"]

KEEP = 5.0  # seconds
TURN = 15.0  # seconds with sweeping, and as many without
TABLE = "twiceproof.twiceproof_records"
TIGHTER = f"ALTER TABLE {TABLE} SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000)"
SIZE = f"SELECT pg_total_relation_size('{TABLE}'), pg_relation_size('{TABLE}'), (SELECT count(*) FROM {TABLE})"


class Ledger:
    """One database, its calls' latencies by whether a sweep was allowed then, and its size at the end of each turn."""

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url
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

    async def sweep_until(self, over: Callable[[], bool]) -> None:
        while not over():
            swept = await await_(sweep(self.app.store))
            self.forgotten += swept.forgotten
            if swept.total == 0:
                await asyncio.sleep(0.2)

    def weigh(self, at: float) -> None:
        with psycopg.connect(self.url) as db:
            row = db.execute(SIZE).fetchone()
        assert row is not None
        self.sizes.append((at, *row))


@click.command()
@click.option("--seconds", default=480.0, help="How long the load lasts.")
@click.option("--rate", default=150, help="Calls per second for each of the two ledgers.")
def main(seconds: float, rate: int) -> None:
    """Measure a PostgreSQL ledger under steady load while it forgets."""
    with PostgresServer(disk=True) as server:
        ledgers = [Ledger("as made", server.create_database()), Ledger("tighter", server.create_database())]
        try:
            for ledger in ledgers:
                asyncio.run(ledger.call(-1, True))
            with psycopg.connect(ledgers[1].url) as db:
                db.execute(TIGHTER)
            asyncio.run(_load(ledgers, seconds, rate))
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


async def _load(ledgers: list[Ledger], seconds: float, rate: int) -> None:
    """Open loop: a call starts when its time has come, however slow the ones before it are."""
    began, numbers, calls = time.perf_counter(), itertools.count(), set[asyncio.Task[None]]()
    for turn in itertools.count():
        at = time.perf_counter() - began
        if at >= seconds:
            break
        sweeping, until = turn % 2 == 1, began + (turn + 1) * TURN
        over = partial(_is_past, until)
        sweeps = [asyncio.create_task(ledger.sweep_until(over)) for ledger in ledgers] if sweeping else []
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
