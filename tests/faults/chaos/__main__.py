"""The long chaos run, from the command line. Exits with 1 if a promise was broken, or if faults hit too seldom."""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.faults.chaos.report import Report, weather
from tests.faults.chaos.storm import Plan, Say
from tests.servers import PostgresServer

OFTEN = 30  # a fault that hit less often than this has proved little
SAY_EVERY = 10.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.chaos", description=__doc__)
    parser.add_argument("--runs", type=int, default=25_000)
    parser.add_argument("--seed", type=int, default=None, help="of the faults; drawn if not given, and printed")
    parser.add_argument("--kill-every", type=float, default=0.8, metavar="SECONDS", help="a worker, on average")
    parser.add_argument("--database-kills", type=int, default=8)
    parser.add_argument("--bare", action="store_true", help="the control: steps without their protection")
    parser.add_argument("--keep", type=Path, default=None, metavar="DIRECTORY", help="for the logs; else thrown away")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    plan = Plan(given.runs, seed, kill_every=given.kill_every, database_kills=given.database_kills, bare=given.bare)
    with directory(given.keep) as here, PostgresServer() as server:
        report = weather(plan, here, server, saying())
    print(report.table())
    if report.verdict.violations:
        print(report.verdict)
    return 1 if report.verdict.violations or too_seldom(report) else 0


def too_seldom(report: Report) -> bool:
    """Return whether faults hit too seldom, which is accepted in a short run."""
    hits = report.verdict.cut_off
    missed = [kind for kind in ("keyed", "check", "never") if hits[kind] < min(OFTEN, report.plan.runs // 500)]
    if missed:
        print(f"killed too seldom between effect and record: {', '.join(missed)}")
    return bool(missed) or report.database_kills < report.plan.database_kills


@contextlib.contextmanager
def directory(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True)
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="chaos-") as made:
        yield Path(made)


def saying() -> Say:
    """Print progress now and then, with the elapsed seconds."""
    began = last = time.monotonic()

    def say(line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= SAY_EVERY:
            last = time.monotonic()
            print(f"{last - began:5.0f} s  {line}", flush=True)

    return say


if __name__ == "__main__":
    sys.exit(main())
