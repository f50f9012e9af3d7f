"""F3: the disk is full, fails, or writes only a part: acknowledged writes are there afterwards."""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.acceptance.places import Place, SqlitePlace
from tests.faults.catalogue.killing.disk_faults import DiskFault, Injected, Short, Small, small_disk
from tests.faults.catalogue.killing.full_disk import FullDisk, Hopeful
from tests.faults.catalogue.killing.outside import Outside
from tests.faults.catalogue.killing.round import Played
from tests.faults.catalogue.killing.strace import why_not
from tests.faults.catalogue.killing.total import Total, apart
from tests.faults.finding import Finding
from tests.faults.trial import Trial

TITLE = "the disk is full, fails, or writes half"
OF_EACH = 36  # number of each kind of fault; some have no effect
CALLS = (("pwrite64", "ENOSPC"), ("pwrite64", "EIO"), ("fdatasync", "EIO"), ("fdatasync", "ENOSPC"))
LATEST = 24  # the n-th call that fails, at the latest: each process makes more than these
ROUND = 15
ON_A_DISK = 3  # faults in one small file system
CONTROLS = 12  # short writes; with three of them the control of two seeds in thirty was without effect
NOT_OURS = (
    "PostgreSQL, Valkey: the disk is their server's; what clients see of it is a refusal or a lost answer (F4, F5, F7)"
)


def run(trial: Trial, finding: Finding) -> None:
    finding.skipped.append(NOT_OURS)
    if "sqlite" not in trial.stores:
        return
    total, times = Total(trial, "sqlite", finding), trial.times(OF_EACH, 4)
    faults: list[DiskFault] = [*injected(times, trial.dice("F3"), finding), *shortened(times, trial.dice("short"))]
    for first in range(0, len(faults), ROUND):
        some = faults[first : first + ROUND]
        total.add(f"faults {first}", partial(suffered, some))
    small(trial, finding, total, times)
    total.tell()
    least = trial.times(100) if finding.skipped == [NOT_OURS] else len(faults)  # without strace or root there is less
    finding.reach("runs on a failing disk", min(least, trial.times(100)), total.played.kills)
    finding.count("runs in which somebody was refused", total.played.again)
    control(trial, finding)


def suffered(faults: Sequence[DiskFault], place: Place, wrap: Any = lambda engine: engine) -> Played:
    return FullDisk(place, faults, Outside(place.directory), wrap).play()


def crowded(faults: Sequence[DiskFault], disk: Place, outside: Path, _: Place) -> Played:
    """The ledger is on a small disk of its own; the test's notes are on a disk with free space."""
    return FullDisk(disk, faults, Outside(outside)).play()


def injected(times: int, dice: random.Random, finding: Finding) -> list[DiskFault]:
    if why := why_not():
        finding.skipped.append(f"errors at system calls: {why}")
        return []
    lasting = itertools.cycle((True, False))
    return [
        Injected(call, error, dice.randint(1, LATEST if call == "pwrite64" else LATEST // 3), next(lasting))
        for _ in range(times)
        for call, error in CALLS
    ]


def shortened(times: int, dice: random.Random) -> list[DiskFault]:
    return [Short(dice.randint(1, 60_000)) for _ in range(times)]


def small(trial: Trial, finding: Finding, total: Total, times: int) -> None:
    dice = trial.dice("small")
    for number in range(-(-times // ON_A_DISK)):
        here = Path(tempfile.mkdtemp(dir=trial.directory))
        with small_disk(here / "disk", "2m") as why_not_here:
            if why_not_here:
                finding.skipped.append(f"a file system without room: {why_not_here}")
                return
            faults = [Small(dice.randrange(0, 40_000, 4_096)) for _ in range(ON_A_DISK)]
            (here / "disk" / "clock").write_text("0")
            disk = SqlitePlace("", here / "disk")
            total.add(f"disk {number}", partial(crowded, faults, disk, here))


def control(trial: Trial, finding: Finding) -> None:
    """The control swallows an error: the caller is told that it was done."""
    played = apart(trial, "sqlite", partial(suffered, shortened(CONTROLS, trial.dice("control")), wrap=Hopeful))
    finding.control("errors of the disk", "; ".join(played.violations[:2]))
