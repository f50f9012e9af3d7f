"""What F11 says about a storm."""

from __future__ import annotations

from collections import Counter

from tests.faults.catalogue.storm_verdict import BUSY, judged


def verdict(effects, answers, keys=2):
    return [wrong.split(":")[0] for wrong in judged(keys, sum(answers.values()), effects, Counter(answers))]


GOOD = ["charge 0 r-a", "charge 1 r-b"]


def test_one_effect_for_each_key_and_its_receipt_for_everyone_is_right():
    assert verdict(GOOD, {(0, "r-a"): 49, (0, BUSY): 1, (1, "r-b"): 50}) == []


def test_a_second_effect_and_a_missing_one_are_seen():
    assert verdict([*GOOD, "charge 0 r-a"], {(0, "r-a"): 1}) == ["effects"]
    assert verdict(GOOD[:1], {(0, "r-a"): 1}) == ["effects"]


def test_an_answer_that_is_not_the_first_ones_is_seen():
    assert verdict(GOOD, {(0, "r-b"): 1}) == ["replays"]
    assert verdict(GOOD, {(0, "ClaimLost"): 1}) == ["replays"]


def test_calls_that_were_never_answered_are_seen():
    assert [wrong.split(":")[0] for wrong in judged(2, 3, GOOD, Counter({(0, "r-a"): 2}))] == ["answers"]
