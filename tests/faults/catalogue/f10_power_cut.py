"""F10: the power fails at any moment: unsynced writes are lost, reordered or torn; acknowledged ones are there.

The writes and syncs are those of the real engine in a real process, recorded by strace. The recording is cut
afterwards, and what is left is opened with the product itself.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.faults.catalogue.killing.strace import why_not
from tests.faults.catalogue.power_disk import Disk
from tests.faults.catalogue.power_tape import Op, record
from tests.faults.catalogue.power_work import receipt
from tests.faults.finding import Finding
from tests.faults.trial import Trial
from twiceproof.claims.claim import CLAIM, RUN, claim_of
from twiceproof.records import Address, Batch, Insert, Record, Written
from twiceproof.stores.sqlite.engine import SqliteEngine

TITLE = "power cuts"
CUTS = 3_000
TAPES = 4  # recordings of a full run
CALLS = 120  # in each
CONTROL_CUTS = 50
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # calls are recorded, not waited for


def run(trial: Trial, finding: Finding) -> None:
    finding.skipped.append("PostgreSQL and Valkey: they sync their own logs; `twiceproof doctor` looks whether they do")
    if "sqlite" not in trial.stores:
        return
    if why := why_not():
        finding.skipped.append(f"SQLite: its writes cannot be recorded: {why}")
        return
    cuts = trial.times(CUTS)
    tapes = min(TAPES, -(-cuts // 300))
    done = sum(cut_tape(trial, finding, number, "power", -(-cuts // tapes)) for number in range(tapes))
    finding.reach("power cuts, SQLite with synchronous=FULL", cuts, done)
    lost = Finding(finding.number, TITLE, trial.seed, trial.share)
    cut_tape(trial, lost, TAPES, "process", CONTROL_CUTS)
    gone = sum(": lost: " in violation for violation in lost.violations)
    finding.control("synchronous=NORMAL", f"{gone} acknowledged writes lost in {CONTROL_CUTS} cuts" if gone else "")


def cut_tape(trial: Trial, finding: Finding, number: int, durability: str, cuts: int) -> int:
    """Record once, and cut the recording at many moments. What remains of unsynced writes is drawn anew each time."""
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="prove-") as name:
        here = Path(name)
        tape = record(here, durability, CALLS)
        points = [point_of(op, here) for op in tape]
        moments = Counter(drawn(points, cuts, trial.dice("cuts", number, durability)))
        disk, acks = Disk(str(here / "disk")), Acks(str(here / "acks"))
        for moment, op in enumerate(tape):
            for again in range(moments[moment]):
                left = disk.cut(trial.dice("cut", number, moment, again))
                for wrong in found_wrong(here / "left", left, acks):
                    finding.violated(f"SQLite, seed {trial.seed}, tape {number}, cut {moment}.{again}: {wrong}")
                finding.hit(points[moment])
            disk.do(op)
            acks.hear(op)
    return cuts


def drawn(points: list[str], cuts: int, dice: random.Random) -> Iterator[int]:
    """Draw half of the moments anywhere, and half from each kind of moment in turn, since some kinds are rare."""
    kinds: dict[str, list[int]] = {}
    for moment, point in enumerate(points):
        kinds.setdefault(point, []).append(moment)
    turns = itertools.cycle(kinds.values())
    for number in range(cuts):
        yield dice.choice(next(turns)) if number % 2 else dice.randrange(len(points))


def point_of(op: Op, here: Path) -> str:
    """Return the next request of the process to the disk."""
    if op.path == str(here / "disk"):
        return f"before {op.kind}: directory"
    return f"before {op.kind}: {Path(op.path).name.removeprefix('claims.db-')}"


class Acks:
    """The answers that callers had at a moment, from notes that the simulated power cut does not affect."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.words: dict[tuple[str, str], str] = {}  # (operation, key) -> held, intent or done

    def hear(self, op: Op) -> None:
        if op.path == self.path and op.kind == "write":
            word, operation, key, *_ = op.data.decode().split()
            self.words[operation, key] = word


def found_wrong(here: Path, left: dict[str, bytes], acks: Acks) -> list[str]:
    """Open what is left as after a power cut, and compare it with what callers were told."""
    here.mkdir()
    for name, contents in left.items():
        (here / name).write_bytes(contents)
    try:
        with contextlib.closing(SqliteEngine(here / "claims.db", durability="process")) as engine:
            found = [one for kind in (CLAIM, RUN) for one in engine.scan(kind, None, None, None, 10 * CALLS).records]
            claims = {tuple(claim.at.space.split("/")[1:]): claim for claim in found}
            wrong = [*missing(claims, acks), *broken(claims), *reused(engine, claims)]
        return wrong + damaged(here)
    except Exception as error:  # noqa: BLE001 - a file that does not open is a finding
        return [f"unreadable: {type(error).__name__}: {error}"]
    finally:
        shutil.rmtree(here)


def missing(claims: dict[tuple[str, ...], Record], acks: Acks) -> list[str]:
    wrong = []
    for (operation, key), word in acks.words.items():
        state = claims[operation, key].state if (operation, key) in claims else "absent"
        if state == "absent" or (word == "done" and state != "done"):
            wrong.append(f"lost: {operation} {key}: acknowledged as {word}, seen {state}")
    return wrong


def broken(claims: dict[tuple[str, ...], Record]) -> list[str]:
    """Whatever is there must be complete: a result is the one that was returned."""
    wrong = []
    for (operation, key), found in claims.items():
        result = bytes(claim_of(found).result)
        if found.state == "done" and result != f'"{receipt(int(key))}"'.encode():
            wrong.append(f"half-written: {operation} {key}: seen {result[:60]!r}")
    return wrong


def reused(engine: SqliteEngine, claims: dict[tuple[str, ...], Record]) -> list[str]:
    """Numbers that were handed out must not be handed out again."""
    highest = max((claim.fence for claim in claims.values()), default=0)
    at = Address("default/after/the power is back", "claim", "self")
    (written,) = engine.commit([Batch([Insert(at, "{}", "held", draw=True)], "after")])
    if isinstance(written, Written) and written.fence > highest:
        return []
    return [f"fence: expected more than {highest}, seen {written}"]


def damaged(here: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(here / "claims.db")) as db:
        (found,) = db.execute("PRAGMA quick_check").fetchone()
    return [] if found == "ok" else [f"damaged: {found}"]
