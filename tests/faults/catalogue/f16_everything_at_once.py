"""F16: five-step runs on four workers while workers and PostgreSQL are killed and answers are lost, all at once."""

from __future__ import annotations

from tests.faults.chaos.report import Report, weather
from tests.faults.chaos.storm import Plan
from tests.faults.finding import Finding
from tests.faults.trial import Trial

TITLE = "everything at once: workers killed, PostgreSQL killed, answers lost"
RUNS = 25_000
SHORTER = 15_000  # a short run has its share of them
DATABASE_KILLS = 8
CONTROL_RUNS, FEWEST = 900, 300  # about a hundred are cut off at the wrong moment, at least thirty of each kind


def run(trial: Trial, finding: Finding) -> None:
    whole = trial.share >= 1
    plan = Plan(
        RUNS if whole else trial.times(SHORTER, 1_200),
        trial.seed,
        kill_every=0.8 if whole else 0.4,
        database_kills=trial.times(DATABASE_KILLS, 2),
    )
    report = rage(trial, plan, "storm")
    for violation in report.verdict.violations:
        finding.violated(f"PostgreSQL, seed {trial.seed}: {violation}")
    finding.reach("runs of five steps, PostgreSQL", plan.runs, sum(report.verdict.states.values()))
    finding.reach("PostgreSQL killed", plan.database_kills, report.database_kills)
    finding.count("workers killed", report.worker_kills)
    finding.count("answers lost", report.replies_lost + report.answers_lost)
    finding.count("in review, all explained", report.explained)
    for kind in ("keyed", "check", "never"):
        finding.hit(f"killed between effect and record: {kind}", report.verdict.cut_off[kind])
    control(trial, finding)


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
