"""What it costs to have: the time to import it, and the memory of a process that has an App open."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from ..findings import Findings, Line
from ..goals import line
from ..plan import Plan
from ..progress import Progress
from ..series import Ratio, spread

__all__ = ["measure_footprint"]

PART = "footprint"
IMPORT = "import time; began = time.perf_counter(); import twiceproof; print(time.perf_counter() - began)"
IDLE = """
import sys
from twiceproof import App
app = App("sqlite:///" + sys.argv[1] + "/idle.db")
with open("/proc/self/status") as status:
    print(next(line.split()[1] for line in status if line.startswith("VmRSS:")))
app.close()
"""


def measure_footprint(plan: Plan, progress: Progress) -> Findings:
    with progress.heat("import", plan.interpreters) as step:
        findings = Findings(lines=_import_lines(plan.interpreters, step))
    if sys.platform == "linux":
        findings.lines.append(line("memory", PART, spread([_idle_megabytes()])))
    else:
        findings.notes.append("Memory is read from /proc, which this system does not have.")
    return findings


def _import_lines(interpreters: int, step: Callable[[], None]) -> list[Line]:
    """The best of several fresh interpreters: the others had company."""
    inside, bare, whole = [], [], []
    for _ in range(interpreters):
        bare.append(_seconds("pass"))
        whole.append(_seconds("import twiceproof"))
        inside.append(float(_run(IMPORT)) * 1000)
        step()
    best = Ratio(min(inside), min(inside), max(inside))
    return [line("import", PART, best), line("import ratio", PART, spread([min(whole) / min(bare)]))]


def _idle_megabytes() -> float:
    with tempfile.TemporaryDirectory() as directory:
        return float(_run(IDLE, directory)) / 1024


def _seconds(code: str) -> float:
    began = time.perf_counter()
    _run(code)
    return time.perf_counter() - began


def _run(code: str, *arguments: str) -> str:
    """In a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True)
    return done.stdout
