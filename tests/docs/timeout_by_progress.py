"""Stands for `timeout` in the commands of a page: a program is ended when its work has come to a point.

After some seconds, as the page has it, a slow machine has done nothing yet, and a fast one waits for no reason.
"""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

__all__ = ["POINTS", "UNSENT", "placed"]

LONGEST = 240.0
UNSENT = "twiceproof_records WHERE kind = 'message' AND state <> 'sent'"
POINTS = {  # by the signal and the program: where to look, and whether the point is reached
    ("KILL", "python shop.py"): ("shop.db", "SELECT count(*) > 25 FROM orders"),
    ("KILL", "twiceproof relay"): ("shop.db", "SELECT count(*) > 10 FROM orders"),
    ("TERM", "twiceproof relay"): (
        "shop.db",
        f"SELECT count(*) = 0 FROM {UNSENT}",
    ),
    ("KILL", "twiceproof work"): ("billing.db", "SELECT count(*) > 5 FROM bookings"),
    ("TERM", "twiceproof work"): ("billing.db", "SELECT count(*) = 80 FROM bookings"),
}


def placed(folder: Path) -> str:
    """Write a `timeout` for the PATH, and return its folder."""
    folder.mkdir()
    program = folder / "timeout"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "$@"\n')
    program.chmod(0o755)
    return str(folder)


def is_reached(database: str, question: str) -> bool:
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as opened:
        return bool(opened.execute(question).fetchone()[0])
    return False  # there is no such file or table yet


def main(option: str, _: str, *words: str) -> int:
    name = option.removeprefix("--signal=")
    database, question = POINTS[name, " ".join(words[:2])]
    with subprocess.Popen(words) as program:
        until = time.monotonic() + LONGEST
        while program.poll() is None and not is_reached(database, question):
            if time.monotonic() > until:
                program.kill()
                print(f"{words} did not come to its point", file=sys.stderr)
                return 1
            time.sleep(0.05)
        if program.poll() is not None:
            return program.returncode
        program.send_signal(signal.Signals[f"SIG{name}"])
    return 124 if name == "TERM" else 128 + signal.SIGKILL


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
