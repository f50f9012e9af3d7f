"""When a finding counts, and what the page says about it."""

from __future__ import annotations

import pytest

from tests.faults.finding import Finding
from tests.faults.page import Proof, page
from tests.faults.planted.catalogue import Catch


def good() -> Finding:
    finding = Finding("F9", "zombies", seed=7, share=1.0)
    finding.reach("pauses, SQLite", 500, 500)
    finding.hit("after the effect", 30)
    finding.control("no fence", "500 of 500 overwrote")
    return finding


def spoilt(how: str) -> Finding:
    finding = good()
    if how == "a promise broken":
        finding.violated("SQLite, seed 7, key 3: written by a zombie")
    elif how == "not judged":
        finding.unknown.append("history 12")
    elif how == "a control that does not bite":
        finding.control("no lease", "")
    elif how == "too few":
        finding.reach("pauses, Valkey", 500, 499)
    else:
        finding.hit("before the effect", 29)
    return finding


def test_a_finding_without_a_problem_holds():
    assert good().holds


@pytest.mark.parametrize(
    "how", ["a promise broken", "not judged", "a control that does not bite", "too few", "hit too seldom"]
)
def test_each_reason_not_to_believe_a_finding_counts(how):
    assert not spoilt(how).holds


def proof(*findings: Finding, caught: bool = True) -> Proof:
    return Proof(
        7, 1.0, "2026-01-02", 61.4, {"SQLite": "3.45"}, list(findings), [Catch("fence-ignored", "F9", caught, "x|y")]
    )


def test_the_page_says_what_was_tried_and_what_came_of_it():
    text = page(proof(good()))
    assert "2026-01-02, seed 7, 1 min 1 s" in text
    assert "make prove SEED=7" in text
    assert "| F9 | zombies | 500 pauses, SQLite | 0 | 0 s |" in text
    assert "| F9 | no fence | 500 of 500 overwrote |" in text
    assert "| F9 | after the effect | 30 |" in text
    assert "| F9 | x/y |" in text


def test_the_page_hides_no_failure():
    text = page(proof(spoilt("a promise broken"), caught=False))
    assert "**1**: SQLite, seed 7, key 3: written by a zombie" in text
    assert "**missed**" in text
    assert not proof(spoilt("a promise broken")).holds
    assert not proof(good(), caught=False).holds
    assert proof(good()).holds


def test_what_could_not_be_tried_is_told_and_is_no_failure():
    finding = Finding("F2", "system calls", seed=7, share=1.0)
    finding.skipped.append("all of it: there is no strace here")
    assert finding.not_tried == "all of it: there is no strace here"
    assert finding.holds
    assert "- F2: all of it: there is no strace here" in page(proof(finding))
    assert not good().not_tried
    assert not spoilt("a promise broken").not_tried
