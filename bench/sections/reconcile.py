"""Two sources of many rows compared: seconds, memory and disk, beside `sort -u` and `comm` on the same files.

Two tables of the same rows in one PostgreSQL are compared, too, beside reladiff where that is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from twiceproof.effects.sql_databases import connect

from ..findings import Findings
from ..goals import line
from ..plan import Plan
from ..progress import Progress
from ..series import spread

__all__ = ["measure_reconcile", "measure_tables"]

PART = "reconciliation"
MISSING = 1_009  # of so many rows, one is missing on one side
BESIDE = """\
for s in left right; do cut -d, -f1 "$0/$s.csv" | sort -u > "$0/$s"; done
comm -3 "$0/left" "$0/right" | wc -l
"""
COMPARED = """
import json, resource, sys, time
from pathlib import Path
from datetime import UTC, datetime
from twiceproof import App
from twiceproof.reconcile import csv_rows, sql_rows
from twiceproof.reconcile.run import ReconcileRun

here, url = Path(sys.argv[1]), sys.argv[2]
app = App("memory://")

def rows(side):
    return sql_rows(url, f"SELECT id, total FROM {side}_orders") if url else csv_rows(here / f"{side}.csv")

@app.reconcile(grace="0s", directory=here / "own")
def both(find):
    left = find.source("left", rows("left"), key="order:{id}", id="{id}")
    right = find.source("right", rows("right"), key="order:{id}", id="{id}")
    yield find.missing(left, right)
    yield find.extra(right, left)
    yield find.duplicates(right)

began = time.perf_counter()
run = ReconcileRun(app.reconciliations["both"], app.runtime, datetime.now(UTC), 0.0)
run.read()
disk = run._workspace.size
suspects = len(run.match().suspects)
run.close()
seconds = time.perf_counter() - began
app.close()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"seconds": seconds, "megabytes": peak, "disk": disk / 1e6, "suspects": suspects}))
"""


TABLE = """CREATE TABLE {side}_orders AS SELECT (number * 7919) % {rows} AS id, 10 AS total
    FROM generate_series(0::bigint, {rows} - 1) AS number WHERE number % {missing} <> {left_out};
    ALTER TABLE {side}_orders ADD PRIMARY KEY (id)"""
SIDES = (("left", 7), ("right", 11))


class Measured(Struct, frozen=True):
    """One comparison in a process of its own. `beside` is how long the tools of the shell took."""

    seconds: float
    megabytes: float
    disk: float
    suspects: int
    beside: float = 0.0


def measure_reconcile(plan: Plan, progress: Progress) -> Findings:
    findings = Findings()
    with progress.heat("reconcile", 2) as step, tempfile.TemporaryDirectory() as directory:
        few, many = (_compared(Path(directory) / str(rows), rows, step) for rows in plan.reconciled)
    rows = plan.reconciled[0]
    findings.lines += [
        line("reconcile time", PART, spread([few.seconds])),
        line("reconcile memory", PART, spread([few.megabytes])),
        line("reconcile flat", PART, spread([many.megabytes / few.megabytes])),
        line("reconcile beside sort", PART, spread([few.seconds / few.beside])),
    ]
    findings.notes.append(
        f"Two sources of {rows:,} rows: {2 * rows / few.seconds:,.0f} rows in a second, {few.disk:,.0f} MB on disk."
    )
    return findings


def _compared(here: Path, rows: int, step: Callable[[], None]) -> Measured:
    here.mkdir()
    for name, left_out in SIDES:
        with (here / f"{name}.csv").open("w") as file:
            file.write("id,total\n")
            file.writelines(f"{number * 7919 % rows},10\n" for number in range(rows) if number % MISSING != left_out)
    found = _apart(here)
    began = time.perf_counter()
    subprocess.run(["sh", "-c", BESIDE, str(here)], check=True, capture_output=True, env={**os.environ, "LC_ALL": "C"})
    seconds = time.perf_counter() - began
    shutil.rmtree(here)
    step()
    return Measured(found.seconds, found.megabytes, found.disk, found.suspects, seconds)


def _apart(here: Path, url: str = "") -> Measured:
    done = subprocess.run([sys.executable, "-c", COMPARED, str(here), url], check=True, capture_output=True, text=True)
    return msgspec.json.decode(done.stdout, type=Measured)


# -- tables --------------------------------------------------------------------------------------


def measure_tables(url: str, plan: Plan, progress: Progress) -> Findings:
    findings, rows = Findings(), plan.reconciled[0]
    with connect(url) as connection:
        for side, left_out in SIDES:
            for statement in TABLE.format(side=side, rows=rows, missing=MISSING, left_out=left_out).split(";"):
                connection.run(statement)
    with progress.heat("reconcile tables", 2) as step, tempfile.TemporaryDirectory() as directory:
        ours = _apart(Path(directory), url)
        step()
        theirs = _reladiff(url)
        step()
    told = f"Two tables of {rows:,} rows in PostgreSQL: {_shown(ours)} by a reconciliation"
    findings.notes.append(f"{told}; reladiff {_shown(theirs) if theirs else 'is not installed'}.")
    if theirs is not None:
        findings.lines.append(line("reconcile beside reladiff", PART, spread([ours.seconds / theirs.seconds])))
    return findings


def _shown(one: Measured) -> str:
    return f"{one.suspects:,} differences in {one.seconds:.1f} s and {one.megabytes:.0f} MB"


def _reladiff(url: str) -> Measured | None:
    """None if it is not installed. Its own process only: the databases' work is in neither's memory."""
    program = shutil.which("reladiff")
    if program is None:
        return None
    began = time.perf_counter()
    child = subprocess.Popen(
        [program, url, "left_orders", url, "right_orders", "-k", "id", "-c", "total"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout is not None
    found = sum(text.startswith(("+", "-")) for text in child.stdout)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    child.stdout.close()
    if child.returncode:
        raise RuntimeError(f"reladiff ended with {child.returncode}")
    return Measured(time.perf_counter() - began, usage.ru_maxrss / 1024, 0.0, found)
