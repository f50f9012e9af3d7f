"""`prove(flow, *args, world=…)`: the same proof as on the command line, from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import structs

from ..errors import Misuse
from ..keys.duration import seconds
from .prover import Prover
from .report import ProofReport, bad_rows, closing_line, timeline, unanswered_lines, wrong_lines
from .target import spread, target_of
from .worlds.world import CallableWorld, World

__all__ = ["NotSafe", "prove"]


class NotSafe(AssertionError):
    """A scenario ended differently from one clean run. `report` has all of them."""

    def __init__(self, report: ProofReport) -> None:
        rows = [" · ".join(row) for row in bad_rows(report)]
        rows += [*wrong_lines(report), *unanswered_lines(report)]
        picture = [f"The worst of them, {report.worst_scenario}:", *timeline(report.worst)]
        super().__init__("\n".join([closing_line(report), *rows, *picture]))
        self.report = report


def prove(
    flow: Any,
    *args: Any,
    world: Callable[[], Any] | World | None = None,
    reset: Callable[[], Any] | None = None,
    store: str = "sqlite",
    time: str | float | None = None,
    depth: int = 2,
    processes: bool = False,
    then: Sequence[Any] = (),
    callbacks: Mapping[str, Any] | None = None,
    approve: tuple[str, ...] = (),
    ends: str = "done",
    real: tuple[str, ...] = (),
    ledger_tables: Sequence[str] = (),
    **kwargs: Any,
) -> ProofReport:
    """Prove that a flow is safe to repeat. `world` returns what the outside holds: counts, or a list of what happened.

    Each scenario has its own copy of memory; anything else is restored by `reset`. `time` is a budget ("60s").
    With `processes`, each process of a scenario is a real one, killed with SIGKILL: for worlds outside of memory.
    `then` are later events of the same object, delivered in every order; `callbacks` and `approve` answer what the
    flow waits for, by name. `ends` is the expected state of one clean run: "done", "failed" or "review"; `real` names
    what may be reached without a stand-in: a host, host:port, or the path of a socket. `ledger_tables` are tables in
    the ledger's own database, which transactional steps write; with them, `world` may be left out.
    """
    budget = None if time is None else seconds(time, name="time")
    target = structs.replace(
        target_of(flow, *args, **kwargs),
        then=tuple(spread(flow, event) for event in then),
        callbacks=dict(callbacks or {}),
        approve=approve,
        ends=ends,
        real=real,
    )
    outside = CallableWorld(lambda: None, reset) if world is None and ledger_tables else _outside(world, reset)
    told = {"store": store, "budget": budget, "depth": depth, "processes": processes}
    report = Prover(target, outside, tables=ledger_tables, **told).run()  # type: ignore[arg-type]
    if not report.good:
        raise NotSafe(report)
    return report


def _outside(world: Callable[[], Any] | World | None, reset: Callable[[], Any] | None) -> World:
    if isinstance(world, World):
        return world
    if not callable(world):
        raise Misuse("world= is a function that tells what the outside holds, such as world=lambda: list(sent).")
    return CallableWorld(world, reset)
