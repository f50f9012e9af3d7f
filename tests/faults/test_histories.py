"""Histories of every planted bug are rejected. Those of the product itself are H1 and H2 of the programme."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec import json

from tests.faults.histories.mutants import BATCH_MUTANTS, MUTANTS
from tests.faults.histories_appended import simulate_appends
from tests.faults.histories_simulated import play, simulate
from tests.faults.linearizability.model import Act, Answer

SEED = 4711
WITHIN = 50  # histories in which a planted bug must show


def text_of(summary):
    return "\n".join([str(summary), *summary.violations[:3], *summary.unknown[:3]])


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant):
    summary = simulate(SEED, WITHIN, mutant=mutant, stop_early=True)
    assert summary.violations, text_of(summary)


@pytest.mark.parametrize("mutant", BATCH_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_of_batches_is_found(mutant):
    assert simulate_appends(SEED, WITHIN, mutant=mutant, stop_early=True).violations


def test_a_seed_gives_the_same_history_byte_for_byte_and_another_another():
    assert json.encode(play(SEED)) == json.encode(play(SEED)) != json.encode(play(SEED + 1))


def test_histories_hold_every_act_and_every_answer_often():
    """Operations and answers that never occur would not be tested."""
    history = [one for seed in range(SEED, SEED + 90) for one in play(seed)]
    seen = Counter(type(one.act) for one in history) + Counter(type(one.answer) for one in history)
    rare = {kind.__name__: seen[kind] for kind in (*Act.__args__, *Answer.__args__, type(None)) if seen[kind] < 25}
    assert not rare
