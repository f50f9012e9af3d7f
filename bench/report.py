"""The whole of a run, as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from .findings import Findings, Line

__all__ = ["Report"]

VERSION = 1


class Report(Struct, frozen=True):
    plan: str
    rounds: int
    taken_at: str
    seconds: float
    machine: dict[str, str]
    findings: Findings

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self._plain()), indent=2) + b"\n")

    def _plain(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "plan": self.plan,
            "rounds": self.rounds,
            "taken_at": self.taken_at,
            "seconds": round(self.seconds),
            "machine": self.machine,
            "lines": [_with_verdict(line) for line in self.findings.lines],
            "rows": self.findings.rows,
            "notes": self.findings.notes,
        }


def _with_verdict(line: Line) -> dict[str, Any]:
    return {**structs.asdict(line), "verdict": line.verdict}
