"""Writes docs/proof.md, the results of a full run: the summary first, the details after it."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from msgspec import Struct

from tests.faults.finding import Finding
from tests.faults.planted.catalogue import PLANTS, Catch
from tests.servers.binaries import postgres_programs, valkey_programs, working
from twiceproof.version import __version__

INTRODUCTION = """\
Results of the last full run of `make prove`, which writes this page. Each fault is injected into real processes on real
stores, or into a simulation where the table says so. The effects are counted by processes outside the product and
compared with what was promised.
"""
HOW_TO_READ_IT = """\
A fault holds if no promise was broken, it was tried at least as often as its goal, every point of the code was hit
often enough ([points](#where-it-hit)), and the same run *without* the protection did go wrong ([controls](#controls)).
A fault that could not be judged counts as broken. [Planted bugs](#planted-bugs) show that the checks find real errors,
and [not tried](#not-tried) lists what is missing.
"""


class Proof(Struct, frozen=True):
    """A whole run of the programme, ready to be written down."""

    seed: int
    share: float
    date: str
    seconds: float
    versions: dict[str, str]
    findings: list[Finding]
    catches: list[Catch]

    @classmethod
    def now(cls, seed: int, share: float, seconds: float, findings: list[Finding], catches: list[Catch]) -> Self:
        return cls(seed, share, f"{datetime.now(UTC):%Y-%m-%d}", seconds, versions(), findings, catches)

    @property
    def holds(self) -> bool:
        return all(finding.holds for finding in self.findings) and all(
            found.caught or found.not_tried for found in self.catches
        )

    def summary(self) -> str:
        good = sum(finding.holds for finding in self.findings)
        bugs = sum(found.caught for found in self.catches)
        return (
            f"{good} of {len(self.findings)} faults hold, {bugs} of {len(self.catches)} planted bugs caught, "
            f"seed {self.seed}, {self.seconds:.0f} s"
        )


def versions() -> dict[str, str]:
    """Return the versions of the product and of the stores that it was tried on."""
    found = {"Twiceproof": __version__, "Python": platform.python_version(), "SQLite": sqlite3.sqlite_version}
    found["PostgreSQL"] = _first(directory / "postgres" for directory in postgres_programs())
    found["Valkey"] = _first(valkey_programs())
    return found


def _first(programs: Iterator[Path]) -> str:
    return next((_number(said) for program in programs if (said := working(program))), "not on this machine")


def _number(said: str) -> str:
    """`postgres (PostgreSQL) 18.6`, `Valkey server v=9.1.2 sha=…`"""
    words = said.replace("v=", "").split()
    return next((word for word in words if word[0].isdigit()), said.strip())


def page(proof: Proof) -> str:
    return "\n".join(_lines(proof)) + "\n"


def _lines(proof: Proof) -> Iterator[str]:
    yield from _head(proof)
    yield from _faults(proof)
    yield from _planted(proof)
    yield from _controls(proof)
    yield from _counts(proof)
    yield from _left_out(proof)
    yield from _coverage(proof)


def _head(proof: Proof) -> Iterator[str]:
    yield "# Proof"
    yield ""
    yield INTRODUCTION
    minutes, seconds = divmod(round(proof.seconds), 60)
    yield f"- **{proof.summary().partition(', seed')[0]}.**"
    yield f"- {proof.date}, seed {proof.seed}, {minutes} min {seconds} s on {os.cpu_count()} cores."
    yield "- " + ", ".join(f"{name} {number}" for name, number in proof.versions.items()) + "."
    yield f"- To repeat it with the same seed: `make prove SEED={proof.seed}`. Process timing still varies."
    yield ""
    yield HOW_TO_READ_IT


def _faults(proof: Proof) -> Iterator[str]:
    yield "## Faults"
    yield ""
    yield "| | fault | how often | broken promises | time |"
    yield "|---|---|---|---|---|"
    for finding in proof.findings:
        tried = "; ".join(f"{goal.reached:,} {what}" for what, goal in finding.figures.items())
        yield f"| {finding.number} | {finding.title} | {tried} | {_verdict(finding)} | {finding.seconds:.0f} s |"
    yield ""


def _counts(proof: Proof) -> Iterator[str]:
    yield "## What else was counted"
    yield ""
    yield "| | counts |"
    yield "|---|---|"
    for finding in proof.findings:
        if finding.counts:
            yield f"| {finding.number} | {'; '.join(f'{count:,} {what}' for what, count in finding.counts.items())} |"
    yield ""


def _verdict(finding: Finding) -> str:
    problems = list(finding.problems())
    return "0" if not problems else f"**{len(problems)}**: {problems[0]}"


def _controls(proof: Proof) -> Iterator[str]:
    yield "## Controls"
    yield ""
    yield "The same fault without the protection. Something must go wrong here, or the fault would prove nothing."
    yield ""
    yield "| | removed protection | what went wrong |"
    yield "|---|---|---|"
    for finding in proof.findings:
        for taken, wrong in finding.controls.items():
            yield f"| {finding.number} | {taken} | {_cell(wrong) or '**nothing**'} |"
    yield ""


def _coverage(proof: Proof) -> Iterator[str]:
    yield "## Where it hit"
    yield ""
    yield "Points of the code at which the faults struck, each at least thirty times."
    yield ""
    yield "| | point | hits |"
    yield "|---|---|---|"
    for finding in proof.findings:
        for point, hits in finding.coverage.items():
            yield f"| {finding.number} | {point} | {hits:,} |"


def _planted(proof: Proof) -> Iterator[str]:
    yield "## Planted bugs"
    yield ""
    yield "Each of these bugs was put into the product on purpose. A short run of the named fault must find it."
    yield ""
    yield "| bug | found by | report |"
    yield "|---|---|---|"
    for found in proof.catches:
        said = (
            _cell(found.said) if found.caught else f"not tried: {found.not_tried}" if found.not_tried else "**missed**"
        )
        yield f"| {PLANTS[found.name].what} | {found.fault} | {said} |"
    yield ""


def _left_out(proof: Proof) -> Iterator[str]:
    yield "## Not tried"
    yield ""
    for finding in proof.findings:
        yield from (f"- {finding.number}: {why}" for why in finding.skipped)
    yield ""


def _cell(text: str, most: int = 160) -> str:
    """One line that fits into a table."""
    flat = " ".join(text.replace("|", "/").split())
    return flat if len(flat) <= most else flat[: most - 1] + "…"
