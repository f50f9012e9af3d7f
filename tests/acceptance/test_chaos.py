"""Five-step runs while workers are killed, PostgreSQL is killed, and answers are lost. `make prove` runs 25,000."""

from __future__ import annotations

import pytest

from tests.chaos.report import weather
from tests.chaos.storm import Plan

pytestmark = [pytest.mark.server, pytest.mark.slow]

SEED = 16


def test_under_every_fault_at_once_all_runs_end_and_nothing_happens_twice(killable_postgres, tmp_path):
    report = weather(Plan(1_200, SEED, kill_every=0.4, database_kills=2), tmp_path, killable_postgres)
    print(report.table())
    assert not report.verdict.violations, f"{report.table()}\n{report.verdict}"
    # The faults were there, and hit where it hurts.
    assert report.database_kills == 2
    assert report.worker_kills >= 10
    assert report.replies_lost >= 5
    assert min(report.verdict.cut_off[kind] for kind in ("keyed", "check", "never")) >= 1, report.table()


def test_control_steps_without_their_protection_happen_twice(killable_postgres, tmp_path):
    plan = Plan(900, SEED, kill_every=0.3, database_kills=1, lose_every=0.1, lost_share=0.03, bare=True)
    report = weather(plan, tmp_path, killable_postgres)
    assert report.verdict.violations
    assert {"keyed", "check", "never", "transaction"} <= set(report.verdict.twice), report.table()
