"""The programme from the command line. Exits with 1 if a promise was broken, or a control or a fault did not bite."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

import msgspec

from tests.faults.finding import Finding
from tests.faults.one import ROOT, apart
from tests.faults.page import Proof, page
from tests.faults.planted.catalogue import PLANTS, Catch, catch
from tests.faults.programme import FAULTS, LONGEST_FIRST
from tests.faults.trial import STORES

PAGE = ROOT / "docs" / "proof.md"
TENTH = 0.1
LANES = 1 + (os.cpu_count() or 1)  # more than cores, since faults often wait: for a server to start, for a lease to end


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the dice; drawn if not given, and printed")
    parser.add_argument("--quick", action="store_true", help="a tenth of it")
    parser.add_argument("--only", metavar="F1,F9", help="some of the faults; then no page is written")
    parser.add_argument("--stores", default=",".join(STORES), help="some of the stores")
    parser.add_argument("--without-planted", action="store_true", help="leave the planted bugs out")
    parser.add_argument("--lanes", type=int, default=LANES, help="faults at a time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="what was found, for programs")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE", help="where a full run writes its results")
    given = parser.parse_args()
    if unknown := set((given.only or "F1").split(",")) - set(FAULTS):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are: {', '.join(FAULTS)}")
    return given


def main() -> int:
    given = arguments()
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    began = time.monotonic()
    with ThreadPoolExecutor(given.lanes) as lanes:
        trying, catching = tried(lanes, given, seed), caught(lanes, given, seed)
        for done in as_completed([*trying.values(), *catching]):
            tell(done.result())
    numbers = [number for number in FAULTS if number in trying]
    proof = Proof.now(
        seed,
        TENTH if given.quick else 1.0,
        time.monotonic() - began,
        [trying[number].result() for number in numbers],
        [found.result() for found in catching],
    )
    write(given, proof)
    print(proof.summary())
    return 0 if proof.holds else 1


def write(given: argparse.Namespace, proof: Proof) -> None:
    if given.json:
        given.json.write_bytes(msgspec.json.format(msgspec.json.encode(proof)) + b"\n")
    if not given.only and not given.quick and not given.without_planted:
        given.page.write_text(page(proof))
        print(f"written: {given.page}")


def tried(lanes: ThreadPoolExecutor, given: argparse.Namespace, seed: int) -> dict[str, Future[Finding]]:
    """The longest first."""
    share, stores = TENTH if given.quick else 1.0, tuple(given.stores.split(","))
    numbers = given.only.split(",") if given.only else LONGEST_FIRST
    ordered = sorted(numbers, key=LONGEST_FIRST.index)
    return {number: lanes.submit(apart, number, seed, share, stores) for number in ordered}


def caught(lanes: ThreadPoolExecutor, given: argparse.Namespace, seed: int) -> list[Future[Catch]]:
    """Whether the short run finds each planted bug."""
    names = [] if given.without_planted or given.only else PLANTS
    return [lanes.submit(catch, name, seed) for name in names]


def tell(done: Finding | Catch) -> None:
    if isinstance(done, Catch):
        print(f" bug  {'caught' if done.caught else done.not_tried or 'MISSED'}  {done.name}: {done.said}", flush=True)
        return
    print(f"{done.number:>4}  {'holds' if done.holds else 'FAILS'}  {done.seconds:4.0f} s  {done.title}", flush=True)
    for problem in list(done.problems())[:20]:
        print(f"      {problem}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
