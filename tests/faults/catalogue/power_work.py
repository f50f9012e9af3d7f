"""The work that is recorded until the power fails: guarded calls and runs on a real SQLite file; each acknowledgement
is a line.

python -m tests.faults.catalogue.power_work DIRECTORY DURABILITY CALLS
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tests.faults.planted import plant_ordered

ROUNDS = 3  # each opens the file and closes it, so that logs come and go
SHORT_LOG = 40  # pages; so that a short recording has many checkpoints


def main(directory: Path, durability: str, calls: int) -> None:
    from twiceproof import App
    from twiceproof.stores.sqlite import engine as sqlite

    sqlite.SHORTEST_LOG = SHORT_LOG
    acks = os.open(directory / "acks", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for turn in range(ROUNDS):
        with App(f"sqlite:///{directory}/disk/claims.db?durability={durability}") as app:
            charge, sync = declare(app, lambda line: os.write(acks, f"{line}\n".encode()))
            for number in range(turn, calls, ROUNDS):
                (sync if number % 3 == 0 else charge)(number)


def declare(app: Any, acknowledged: Any) -> tuple[Any, Any]:
    @app.once(key="{number}", name="charge")
    def guarded(number: int) -> str:
        acknowledged(f"held charge {number}")
        return receipt(number)

    @app.step(repeat="never")
    def ship(number: int) -> str:
        acknowledged(f"intent sync {number}")
        return receipt(number)

    @app.flow(key="{number}")
    def sync(number: int) -> str:
        return ship(number)

    def ended(function: Any, name: str) -> Any:
        def call(number: int) -> None:
            acknowledged(f"done {name} {number} {function(number)}")

        return call

    return ended(guarded, "charge"), ended(sync, "sync")


def receipt(number: int) -> str:
    """Return a receipt of any length, so that some commits are one page and some are ten."""
    return f"receipt-{number}-" + "x" * (number * 7_919 % 5 * 6_000)


if __name__ == "__main__":
    plant_ordered()
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
