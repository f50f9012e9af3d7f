"""One fault in a process of its own, so that it may fork and kill as it likes: `python -m tests.faults.one F9 …`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import traceback
from pathlib import Path

import msgspec

from tests.faults import planted
from tests.faults.finding import Finding
from tests.faults.programme import FAULTS, module, try_fault
from tests.faults.trial import STORES

ROOT = Path(__file__).parents[2]
BROKE_OFF = "the run broke off"
PLENTY = 1_800.0  # seconds; a fault that takes longer hangs


def apart(
    number: str, seed: int, share: float, stores: tuple[str, ...] = STORES, *, plant: str = "", patience: float = PLENTY
) -> Finding:
    """Try it in a process of its own; if that ends without a finding, this itself is one."""
    words = [number, "--seed", str(seed), "--share", str(share), "--stores", ",".join(stores)]
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.one", *words],
        cwd=ROOT,
        text=True,
        env=os.environ | planted.ordered(plant),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        out, err = child.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        child.kill()
        out, err = "", f"did not end within {patience:.0f} s"
        child.communicate()
    try:
        return msgspec.json.decode(out.rstrip("\n").split("\n")[-1], type=Finding)  # a sentence may hold U+2028
    except (IndexError, msgspec.MsgspecError):
        return broken(number, seed, share, err[-2000:] or out[-2000:])


def broken(number: str, seed: int, share: float, why: str) -> Finding:
    finding = Finding(number, module(number).TITLE, seed, share)
    finding.violated(f"{BROKE_OFF}: {why}")
    return finding


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.one", description=__doc__)
    parser.add_argument("number", choices=FAULTS)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--stores", default=",".join(STORES))
    given = parser.parse_args()
    stores = tuple(given.stores.split(","))
    planted.plant_ordered()
    try:
        finding = try_fault(given.number, given.seed, given.share, stores, say, one_is_enough=planted.is_ordered())
    except Exception:  # noqa: BLE001 - whatever it is, it is told to the parent
        finding = broken(given.number, given.seed, given.share, traceback.format_exc())
    print(msgspec.json.encode(finding).decode(), flush=True)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
