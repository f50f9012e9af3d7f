"""The page that a full run leaves behind: docs/proof.md."""

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

MISSING = "F6 is about MariaDB, which Twiceproof does not run on yet."


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
    """Of what was tried, and of what it was tried on."""
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
    yield from _controls(proof)
    yield from _coverage(proof)
    yield from _planted(proof)
    yield from _left_out(proof)


def _head(proof: Proof) -> Iterator[str]:
    yield "# Proof"
    yield ""
    yield "Written by `make prove`, not by hand: real processes, real stores, and effects counted outside the product."
    yield ""
    minutes, seconds = divmod(round(proof.seconds), 60)
    yield f"- {proof.date}, seed {proof.seed}, {minutes} min {seconds} s on {os.cpu_count()} cores."
    yield "- " + ", ".join(f"{name} {number}" for name, number in proof.versions.items()) + "."
    yield f"- **{proof.summary().partition(', seed')[0]}.**"
    yield f"- To throw the same dice again: `make prove SEED={proof.seed}`. Processes still race as they like."
    yield ""


def _faults(proof: Proof) -> Iterator[str]:
    yield "## Faults"
    yield ""
    yield "| | fault | how often | broken promises | time |"
    yield "|---|---|---|---|---|"
    for finding in proof.findings:
        yield (
            f"| {finding.number} | {finding.title} | {'; '.join(_figures(finding))} | "
            f"{_verdict(finding)} | {finding.seconds:.0f} s |"
        )
    yield ""


def _figures(finding: Finding) -> Iterator[str]:
    for what, goal in finding.figures.items():
        yield f"{goal.reached:,} {what}"
    for what, count in finding.counts.items():
        yield f"{count:,} {what}"


def _verdict(finding: Finding) -> str:
    problems = list(finding.problems())
    return "0" if not problems else f"**{len(problems)}**: {problems[0]}"


def _controls(proof: Proof) -> Iterator[str]:
    yield "## Controls"
    yield ""
    yield "The same fault with the protection taken away. Had nothing gone wrong there, the fault would prove nothing."
    yield ""
    yield "| | taken away | what went wrong |"
    yield "|---|---|---|"
    for finding in proof.findings:
        for taken, wrong in finding.controls.items():
            yield f"| {finding.number} | {taken} | {_cell(wrong) or '**nothing**'} |"
    yield ""


def _coverage(proof: Proof) -> Iterator[str]:
    yield "## Where it hit"
    yield ""
    yield "Each point was hit at least thirty times."
    yield ""
    yield "| | point | hits |"
    yield "|---|---|---|"
    for finding in proof.findings:
        for point, hits in finding.coverage.items():
            yield f"| {finding.number} | {point} | {hits:,} |"
    yield ""


def _planted(proof: Proof) -> Iterator[str]:
    yield "## Planted bugs"
    yield ""
    yield "Each of these was put into the product on purpose, and the short run was asked whether it noticed."
    yield ""
    yield "| bug | found by | what it said |"
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
    yield f"- {MISSING}"
    for finding in proof.findings:
        yield from (f"- {finding.number}: {why}" for why in finding.skipped)


def _cell(text: str, most: int = 160) -> str:
    """One line that fits into a table."""
    flat = " ".join(text.replace("|", "/").split())
    return flat if len(flat) <= most else flat[: most - 1] + "…"
