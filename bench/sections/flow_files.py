"""Flows in files: a flow beside its twin in Python, lint of a long file, and the first start among many releases."""

from __future__ import annotations

import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from twiceproof import App, load_flows
from twiceproof.declared.lint import lint
from twiceproof.declared.reading import read_flow
from twiceproof.declared.releases import LiveFlow, ReleaseChange, change_live, live_record, push, read_live
from twiceproof.operations import block
from twiceproof.stores.base import Store

from ..callers import ONE, THREADS
from ..contenders.flows import blocking, fresh_ids
from ..findings import Findings, rows_beside
from ..goals import line
from ..plan import Plan
from ..progress import Progress
from ..rounds import Contender, Slots, compete
from ..series import Ratio, ratio, spread
from ..sites import Site

__all__ = ["long_file", "measure_flow_files", "measure_lint"]

STEPS = 5
LINES = 500
MODULE = "twiceproof_bench_steps"
HEAD = 'flow: count\ninput: {run: text, number: integer}\nkey: "{run}"\nsteps:\n'
STEP = "  - step: s{0}\n    call: " + MODULE + ":add\n    with: {{number: ={1}}}\n    repeat: safe\n"


def add(number: int) -> int:
    return number + 1


def measure_flow_files(site: Site, plan: Plan, progress: Progress) -> Findings:
    findings = Findings()
    with ExitStack() as stack:
        flow, twin = stack.enter_context(_both(site))
        for callers in (ONE, THREADS):
            contenders = [_running("in Python", twin, callers), _running("in a file", flow, callers)]
            with progress.heat(f"{site.name}, flows in files, {callers}", plan.rounds) as step:
                base, ours = compete(contenders, Slots(plan.rounds, plan.slot), step)
            part = f"{site.name}, flows of {STEPS} steps in files, {callers}"
            findings.rows += rows_beside(part, base, [base, ours])
            findings.lines.append(line("flow in a file", site.name, ratio(base, ours), f"{callers}:"))
    with progress.heat(f"{site.name}, first start among releases", plan.rounds) as step:
        findings.lines.append(line("many releases", site.name, _first_starts(site, plan, step)))
    return findings


def _running(name: str, flow: Callable[[str, int], Any], callers: str) -> Contender:
    ids = fresh_ids()
    return Contender(f"{name}, {STEPS} steps", blocking(callers, lambda _: flow(ids(), 1)))


@contextmanager
def _both(site: Site) -> Iterator[tuple[Any, Any]]:
    """The same flow, read from a file and written in Python, each on a ledger of its own."""
    with tempfile.TemporaryDirectory() as folder, App(site.fresh()) as mine, App(site.fresh()) as other, _steps():
        body = "".join(STEP.format(n, "number" if n == 0 else f"s{n - 1}") for n in range(STEPS))
        (Path(folder) / "count.flow.yaml").write_text(f"{HEAD}{body}returns: =s{STEPS - 1}\n")
        yield load_flows(mine, Path(folder))["count"], _twin(other)


@contextmanager
def _steps() -> Iterator[None]:
    """A module, as a file names the function of a step."""
    module = types.ModuleType(MODULE)
    module.__dict__["add"] = add
    sys.modules[MODULE] = module
    try:
        yield
    finally:
        del sys.modules[MODULE]


def _twin(app: App) -> Any:
    @app.step(repeat="safe")
    def one_more(number: int) -> int:
        return add(number)

    @app.flow(key="{run}")
    def count(run: str, number: int) -> int:
        for _ in range(STEPS):
            number = one_more(number)
        return number

    return count


# -- lint ----------------------------------------------------------------------------------------


def long_file() -> str:
    """A sound file of 500 lines."""
    head = "flow: long\ninput: {order: {id: integer, total: number}}\nkey: order:{order.id}\nuses: [books]\nsteps:\n"
    step = (
        "  - step: s{0}\n    http: PUT books /orders/{{order.id}}/{0}\n    json:\n"
        "      total: =round(order.total * {0}, 2)\n"
        "      text: Order {{order.id}}, part {0}\n    if: order.total > {0}\n    repeat: safe\n"
    )
    text = head + "".join(step.format(number) for number in range(1, 1 + (LINES - 6) // 7))
    tail = (
        "returns: =order.total\n"
        "tests: [{name: an order, input: {order: {id: 7, total: 1200.5}}, expect: {returns: 1200.5}}]\n"
    )
    return text + tail + "# the end\n" * (LINES - 2 - text.count("\n"))


def measure_lint(plan: Plan, progress: Progress) -> Findings:
    text, taken = long_file(), []
    with progress.heat(f"lint of {LINES} lines", plan.rounds) as step:
        for _ in range(plan.rounds):
            began = time.perf_counter()
            found = lint(read_flow(text), None)
            taken.append((time.perf_counter() - began) * 1_000)
            assert not found, found[:3]
            step()
    return Findings(lines=[line("lint of a file", "files", spread(taken))])


# -- releases ------------------------------------------------------------------------------------


def _first_starts(site: Site, plan: Plan, step: Callable[[], None]) -> Ratio:
    """Declare the flow and start its first run: time where many releases are kept, beside one."""
    with tempfile.TemporaryDirectory() as folder:
        places = [(Path(folder) / str(count), site.fresh(), count) for count in (1, plan.releases)]
        for place, url, count in places:
            place.mkdir()
            with App(url) as app:
                for number in range(count):
                    _release(app.store, f"{HEAD}  - set: {{x: {number}}}\n")
            (place / "count.flow.yaml").write_text(f"{HEAD}  - set: {{x: 1}}\n")
        ids, ratios = fresh_ids(), []
        for _ in range(plan.rounds):
            few, many = (_started(url, place, ids()) for place, url, _ in places)
            ratios.append(many / few)
            step()
    return spread(ratios)


def _started(url: str, place: Path, run: str) -> float:
    began = time.perf_counter()
    with App(url) as app:
        load_flows(app, place)["count"].start(run, 1)
        return time.perf_counter() - began


def _release(store: Store, text: str) -> None:
    """Make a content live, as a promotion does after its conditions."""
    release, _ = block(push(store, "default", text, by="bench"))
    record = block(live_record(store, "default", release.flow))
    before = None if record is None else read_live(record)
    number = 1 if before is None else before.last + 1
    live = LiveFlow(release.flow, release.hash, number, number, number)
    change = ReleaseChange("promote", number, release.hash, "bench", 0.0)
    assert block(change_live(store, "default", record, live, change, release))
