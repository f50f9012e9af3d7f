"""Histories of the real claims, simulated and real, are linearizable; those of every planted bug are not."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec import json

from tests.prove.histories.mutants import BATCH_MUTANTS, MUTANTS
from tests.prove.histories_appended import simulate_appends
from tests.prove.histories_real import record
from tests.prove.histories_simulated import play, simulate
from twiceproof.prove.histories.act import Act
from twiceproof.prove.histories.answer import Answer

SEED = 4711
WITHIN = 50  # histories in which a planted bug must show


def text_of(summary):
    return "\n".join([str(summary), *summary.violations[:3], *summary.unknown[:3]])


@pytest.mark.slow
def test_simulated_histories_are_linearizable():
    summary = simulate(SEED, 200)
    assert summary.holds, text_of(summary)
    assert summary.operations > 200 * 40
    assert summary.repeated == 2


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant):
    summary = simulate(SEED, WITHIN, mutant=mutant, stop_early=True)
    assert summary.violations, text_of(summary)


def test_batches_land_as_a_whole_and_one_after_another():
    summary = simulate_appends(SEED, 40)
    assert summary.holds, text_of(summary)


@pytest.mark.parametrize("mutant", BATCH_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_of_batches_is_found(mutant):
    assert simulate_appends(SEED, WITHIN, mutant=mutant, stop_early=True).violations


def test_a_seed_gives_the_same_history_byte_for_byte_and_another_another():
    assert json.encode(play(SEED)) == json.encode(play(SEED)) != json.encode(play(SEED + 1))


def test_histories_hold_every_act_and_every_answer_often():
    """What never happens is not tested."""
    history = [one for seed in range(SEED, SEED + 60) for one in play(seed)]
    seen = Counter(type(one.act) for one in history) + Counter(type(one.answer) for one in history)
    rare = {kind.__name__: seen[kind] for kind in (*Act.__args__, *Answer.__args__, type(None)) if seen[kind] < 25}
    assert not rare


@pytest.mark.slow
def test_real_histories_on_sqlite_are_linearizable(tmp_path):
    summary = record(f"sqlite:///{tmp_path}/claims.db", SEED, 50)
    assert summary.holds, text_of(summary)
    assert summary.operations > 50 * 40
    assert summary.faults["processes stopped"]


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize("fixture", ["postgres_dsn", "redis_url"])
def test_real_histories_on_servers_are_linearizable(fixture, request):
    summary = record(request.getfixturevalue(fixture), SEED, 50)
    assert summary.holds, text_of(summary)
    assert summary.operations > 50 * 40
    assert summary.faults["replies to be lost"]


@pytest.mark.slow
def test_control_without_the_fence_real_histories_are_not(tmp_path):
    assert record(f"sqlite:///{tmp_path}/claims.db", SEED, 20, blind=True).violations
