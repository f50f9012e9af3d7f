"""H1: histories of the real claims on the memory store, every interleaving and every fault drawn from a seed."""

from __future__ import annotations

from tests.faults.finding import Finding
from tests.faults.histories.mutants import BATCH_MUTANTS, MUTANTS, Mutant
from tests.faults.histories.summary import Summary
from tests.faults.histories_appended import simulate_appends
from tests.faults.histories_simulated import simulate
from tests.faults.trial import Trial

TITLE = "claims and batches by many callers, simulated: is there one order that explains every answer?"
HISTORIES = 10_000
OF_BATCHES = 1_000
PORTION = 20
WITHIN = 200  # histories in which a planted bug must show; the rarest needs 15 on average


def run(trial: Trial, finding: Finding) -> None:
    first = trial.dice("histories").randrange(10**9)
    finding.reach("histories of claims", trial.times(HISTORIES), _all(finding, simulate, first, trial.times(HISTORIES)))
    batches = trial.times(OF_BATCHES)
    finding.reach("histories of batches", batches, _all(finding, simulate_appends, first, batches))
    if not finding.one_is_enough:
        _controls(finding, first)


def _all(finding: Finding, play: object, first: int, histories: int) -> int:
    """In portions, so that a broken promise is reported early."""
    done = 0
    while done < histories:
        summary: Summary = play(first + done, min(PORTION, histories - done))  # type: ignore[operator]
        done += summary.histories
        finding.count("operations", summary.operations)
        finding.count("of these without an answer", summary.unanswered)
        finding.count("histories played twice, byte for byte the same", summary.repeated)
        finding.unknown.extend(summary.unknown)
        for violation in summary.violations:
            finding.violated(f"{summary.where}: {violation}")
    return done


def _controls(finding: Finding, first: int) -> None:
    for mutant in MUTANTS:
        finding.control(mutant.name, _found(simulate(first, WITHIN, mutant=mutant, stop_early=True), mutant))
    for mutant in BATCH_MUTANTS:
        finding.control(mutant.name, _found(simulate_appends(first, WITHIN, mutant=mutant, stop_early=True), mutant))


def _found(summary: Summary, mutant: Mutant) -> str:
    return f"rejected in history {summary.histories}" if summary.violations else ""
