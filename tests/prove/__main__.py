"""The programme from the command line. Exits with 1 if a promise was broken, or a control or a fault did not bite."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

import msgspec

from tests.prove.finding import Finding
from tests.prove.one import ROOT, apart
from tests.prove.page import Proof, page
from tests.prove.planted.catalogue import PLANTS, Catch, catch
from tests.prove.programme import FAULTS, LONGEST_FIRST
from tests.prove.trial import STORES

PAGE = ROOT / "docs" / "proof.md"
TENTH = 0.1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.prove", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the dice; drawn if not given, and printed")
    parser.add_argument("--quick", action="store_true", help="a tenth of it")
    parser.add_argument("--only", metavar="F1,F9", help="some of the faults; then no page is written")
    parser.add_argument("--stores", default=",".join(STORES), help="some of the stores")
    parser.add_argument("--without-planted", action="store_true", help="leave the planted bugs out")
    parser.add_argument("--lanes", type=int, default=2, help="faults at a time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="what was found, for programs")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE", help="where a full run writes its results")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    began = time.monotonic()
    findings = list(tried(given, seed))
    catches = [] if given.without_planted or given.only else list(caught(given.lanes, seed))
    proof = Proof.now(seed, TENTH if given.quick else 1.0, time.monotonic() - began, findings, catches)
    write(given, proof)
    print(proof.summary())
    return 0 if proof.holds else 1


def write(given: argparse.Namespace, proof: Proof) -> None:
    if given.json:
        given.json.write_bytes(msgspec.json.format(msgspec.json.encode(proof)) + b"\n")
    if not given.only and not given.quick and not given.without_planted:
        given.page.write_text(page(proof))
        print(f"written: {given.page}")


def tried(given: argparse.Namespace, seed: int) -> Iterator[Finding]:
    """In lanes, the longest first; told one by one as they end, given in the order of their numbers."""
    numbers = given.only.split(",") if given.only else list(FAULTS)
    share, stores = TENTH if given.quick else 1.0, tuple(given.stores.split(","))
    with ThreadPoolExecutor(given.lanes) as lanes:
        ordered = sorted(numbers, key=lambda number: LONGEST_FIRST.index(number))
        running = {number: lanes.submit(apart, number, seed, share, stores) for number in ordered}
        for done in as_completed(running.values()):
            tell(done)
        yield from (running[number].result() for number in numbers)


def tell(done: Future[Finding]) -> None:
    finding = done.result()
    word = "holds" if finding.holds else "FAILS"
    print(f"{finding.number:>4}  {word}  {finding.seconds:4.0f} s  {finding.title}", flush=True)
    for problem in list(finding.problems())[:20]:
        print(f"      {problem}", flush=True)


def caught(lanes: int, seed: int) -> Iterator[Catch]:
    """Whether the short run finds each planted bug."""
    with ThreadPoolExecutor(lanes) as pool:
        for found in pool.map(lambda name: catch(name, seed), PLANTS):
            print(f"  bug  {'caught' if found.caught else 'MISSED'}  {found.name}: {found.said}", flush=True)
            yield found


if __name__ == "__main__":
    sys.exit(main())
