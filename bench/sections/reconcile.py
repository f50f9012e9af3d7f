"""Two sources of many rows compared: seconds, memory and disk, beside `sort -u` and `comm` on the same files."""

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

from ..findings import Findings
from ..goals import line
from ..plan import Plan
from ..progress import Progress
from ..series import spread

__all__ = ["measure_reconcile"]

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
from twiceproof.reconcile import csv_rows
from twiceproof.reconcile.run import ReconcileRun

here = Path(sys.argv[1])
app = App("memory://")

@app.reconcile(grace="0s", directory=here / "own")
def both(find):
    left = find.source("left", csv_rows(here / "left.csv"), key="order:{id}", id="{id}")
    right = find.source("right", csv_rows(here / "right.csv"), key="order:{id}", id="{id}")
    yield find.missing(left, right)
    yield find.extra(right, left)
    yield find.duplicates(right)

began = time.perf_counter()
run = ReconcileRun(app.reconciliations["both"], app.parts, datetime.now(UTC), 0.0)
run.read()
disk = run._workspace.size
suspects = len(run.match().suspects)
run.close()
seconds = time.perf_counter() - began
app.close()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"seconds": seconds, "megabytes": peak, "disk": disk / 1e6, "suspects": suspects}))
"""


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
    for name, left_out in (("left", 7), ("right", 11)):
        with (here / f"{name}.csv").open("w") as file:
            file.write("id,total\n")
            file.writelines(f"{number * 7919 % rows},10\n" for number in range(rows) if number % MISSING != left_out)
    done = subprocess.run([sys.executable, "-c", COMPARED, str(here)], check=True, capture_output=True, text=True)
    found = msgspec.json.decode(done.stdout, type=Measured)
    began = time.perf_counter()
    subprocess.run(["sh", "-c", BESIDE, str(here)], check=True, capture_output=True, env={**os.environ, "LC_ALL": "C"})
    seconds = time.perf_counter() - began
    shutil.rmtree(here)
    step()
    return Measured(found.seconds, found.megabytes, found.disk, found.suspects, seconds)
