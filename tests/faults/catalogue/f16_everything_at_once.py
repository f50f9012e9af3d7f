"""F16: five-step runs on four workers while workers and PostgreSQL are killed and answers are lost, all at once."""

from __future__ import annotations

from msgspec import structs

from tests.faults.chaos.report import Report, weather
from tests.faults.chaos.storm import Plan
from tests.faults.finding import SELDOM, Finding
from tests.faults.trial import Trial

TITLE = "everything at once: workers killed, PostgreSQL killed, answers lost"
RUNS = 25_000
SHORTER = 15_000  # a short run has its share of them
DATABASE_KILLS = 8
MOST_STORMS = 4
CONTROL_RUNS, FEWEST = 900, 300  # about a hundred are cut off at the wrong moment, at least thirty of each kind


def run(trial: Trial, finding: Finding) -> None:
    """A short run may be over after a handful of kills: there are further storms until each kind of step was hit."""
    whole = trial.share >= 1
    runs = RUNS if whole else trial.times(SHORTER, 1_200)
    plan = Plan(runs, trial.seed, kill_every=0.8 if whole else 0.4, database_kills=trial.times(DATABASE_KILLS, 2))
    ended = killed = storms = 0
    while not storms or (not whole and storms < MOST_STORMS and min(finding.coverage.values()) < SELDOM):
        report = storm(trial, finding, structs.replace(plan, seed=trial.seed + storms))
        ended, killed = ended + sum(report.verdict.states.values()), killed + report.database_kills
        storms += 1
    finding.reach("runs of five steps, PostgreSQL", plan.runs * storms, ended)
    finding.reach("PostgreSQL killed", plan.database_kills * storms, killed)
    control(trial, finding)


def storm(trial: Trial, finding: Finding, plan: Plan) -> Report:
    report = rage(trial, plan, f"storm-{plan.seed}")
    for violation in report.verdict.violations:
        finding.violated(f"PostgreSQL, seed {plan.seed}: {violation}")
    finding.count("workers killed", report.worker_kills)
    finding.count("answers lost", report.replies_lost + report.answers_lost)
    finding.count("in review, all explained", report.explained)
    for kind in ("keyed", "check", "never"):
        finding.hit(f"killed between effect and record: {kind}", report.verdict.cut_off[kind])
    return report


def control(trial: Trial, finding: Finding) -> None:
    plan = Plan(
        trial.times(CONTROL_RUNS, FEWEST),
        trial.seed,
        kill_every=0.3,
        database_kills=1,
        lose_every=0.1,
        lost_share=0.03,
        bare=True,
    )
    twice = rage(trial, plan, "control").verdict.twice
    finding.control("steps without their protection", ", ".join(f"{n} {kind} twice" for kind, n in twice.items()))


def rage(trial: Trial, plan: Plan, name: str) -> Report:
    here = trial.directory / name
    here.mkdir()
    return weather(plan, here, trial.postgres, trial.say)
