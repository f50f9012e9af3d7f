"""Rows found or created by a unique key, beside the bare statement on an open connection."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from tests.servers import MariadbServer

from twiceproof.effects import sql
from twiceproof.effects.sql_databases import connect, database_of

from ..callers import One
from ..findings import Findings, rows_beside
from ..goals import line
from ..plan import Plan
from ..progress import Progress
from ..rounds import Contender, Slots, compete
from ..series import ratio
from ..sites import Site

__all__ = ["measure_rows", "measure_rows_on_mariadb"]

TABLE = "CREATE TABLE customers (email VARCHAR(90) PRIMARY KEY, name VARCHAR(90) NOT NULL)"
INSERT = "INSERT INTO customers (email, name) VALUES ({0}, {0}) {1}RETURNING email, name"
SELECT = "SELECT email, name FROM customers WHERE email = {0}"
SKIP = "ON CONFLICT (email) DO NOTHING "


def measure_rows(site: Site, plan: Plan, progress: Progress) -> Findings:
    url = site.fresh()
    if url.startswith("sqlite"):
        from pathlib import Path

        Path(url.removeprefix("sqlite:///")).touch()
    return _measure(site.name, url, plan, progress)


def measure_rows_on_mariadb(plan: Plan, progress: Progress) -> Findings:
    with MariadbServer(disk=True) as server:
        return _measure("MariaDB", server.create_database(), plan, progress)


def _measure(name: str, url: str, plan: Plan, progress: Progress) -> Findings:
    findings = Findings()
    slots = Slots(plan.rounds, plan.slot)
    with ExitStack() as stack:
        stack.callback(database_of(url).close_idle)
        raw = stack.enter_context(connect(url))
        raw.run(TABLE)
        ours = _finding(url)
        ours("known")  # checks the table
        for what, keys in (("new", lambda: map(str, itertools.count())), ("known", lambda: itertools.repeat("known"))):
            bare = _inserting(raw) if what == "new" else _selecting(raw)
            pair = [_contender(bare, keys(), "bare-"), _contender(ours, keys(), "ours-", "sql.find_or_create")]
            with progress.heat(f"{name}, {what} rows", slots.rounds) as step:
                base, mine = compete(pair, slots, step)
            findings.add(
                Findings(
                    rows_beside(f"{name}, {what} rows", base, [base, mine]),
                    [line(f"rows {what}", name, ratio(mine, base))],
                )
            )
    return findings


def _contender(
    act: Callable[[str], object], keys: Iterator[str], prefix: str, name: str = "the bare statement"
) -> Contender:
    return Contender(name, One(lambda _: act(prefix + key if (key := next(keys)) != "known" else key)))


def _finding(url: str) -> Callable[[str], object]:
    return lambda key: sql.find_or_create(url, "customers", key={"email": key}, values={"name": "Ana"}).perform("tp_1")


def _inserting(raw: Any) -> Callable[[str], object]:
    """With the driver alone: a cursor, the statement, its row."""
    handle, mark = raw.handle, "?" if raw.dialect == "sqlite" else "%s"
    statement = INSERT.format(mark, "" if raw.dialect == "mysql" else SKIP)
    return lambda key: _run(handle, statement, (key, "Ana"))


def _selecting(raw: Any) -> Callable[[str], object]:
    handle, statement = raw.handle, SELECT.format("?" if raw.dialect == "sqlite" else "%s")
    return lambda key: _run(handle, statement, (key,))


def _run(handle: Any, statement: str, values: tuple[str, ...]) -> object:
    cursor = handle.cursor()
    cursor.execute(statement, values)
    row = cursor.fetchone()
    cursor.close()
    return row
