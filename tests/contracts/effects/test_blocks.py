"""What every ready-made effect promises, tried on each of them at its destination."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.effects.subjects import SUBJECTS, TOKEN, Subject
from twiceproof import Absent, Happened, NotDone, OutcomeUnknown, Unknown
from twiceproof.effects.base import Effect

KEY, OTHER = "tp_" + "a1" * 16, "tp_" + "b2" * 16


@pytest.fixture(params=SUBJECTS, ids=str)
def subject(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    with SUBJECTS[request.param](request, tmp_path, monkeypatch) as made:
        yield made


def again(effect: Effect[Any], key: str) -> Any:
    """Do after a lost answer what the engine does: ask where it can ask, else repeat where that is harmless."""
    if effect.repeat.kind == "check":
        look = effect.look(key)
        return look.receipt if isinstance(look, Happened) else effect.perform(key)
    return effect.perform(key)


def test_it_is_an_effect_that_describes_itself_without_secrets(subject: Subject) -> None:
    effect = subject.effect
    assert isinstance(effect, Effect) and effect.name
    assert effect.repeat.kind in ("safe", "keyed", "check")
    assert TOKEN not in json.dumps(effect.describe()) and effect.describe() == effect.describe()
    assert subject.state() == subject.state() and subject.count() == 0  # nothing has happened


def test_before_it_is_performed_it_is_absent(subject: Subject) -> None:
    assert subject.effect.look(KEY) == Absent()


def test_performed_twice_with_one_key_it_happens_once(subject: Subject) -> None:
    first = subject.effect.perform(KEY)
    second = again(subject.effect, KEY)
    assert subject.count() == 1
    assert type(first) is type(second) is subject.effect.result_type


def test_when_its_answer_is_lost_it_is_found_and_does_not_happen_again(subject: Subject) -> None:
    subject.lose_answer()
    with contextlib.suppress(OutcomeUnknown):  # some find out by themselves
        subject.effect.perform(KEY)
    assert subject.count() == 1
    assert isinstance(subject.effect.look(KEY), Happened)
    again(subject.effect, KEY)
    assert subject.count() == 1


def test_a_clean_refusal_leaves_nothing(subject: Subject) -> None:
    subject.refuse()
    with pytest.raises(NotDone):
        subject.effect.perform(KEY)
    with contextlib.suppress(Exception):  # where the destination itself was taken away
        assert subject.count() == 0


def test_looking_changes_nothing(subject: Subject) -> None:
    before = subject.state()
    subject.effect.look(KEY)
    assert subject.state() == before
    subject.effect.perform(KEY)
    after = subject.state()
    assert isinstance(subject.effect.look(KEY), Happened)
    assert subject.state() == after


def test_a_look_that_fails_is_unknown(subject: Subject) -> None:
    assert isinstance(subject.unreachable.look(KEY), Unknown)


def test_two_attempts_at_once_make_one_effect(subject: Subject) -> None:
    if not subject.concurrent:
        pytest.skip("the destination cannot tell; the claim on the run keeps attempts apart")

    def attempt(_: int) -> Any:
        with contextlib.suppress(NotDone):
            return subject.effect.perform(KEY)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(attempt, range(8)))
    assert any(results)
    assert subject.count() == 1


def test_the_effect_key_is_at_the_destination(subject: Subject) -> None:
    if subject.carried is None:
        pytest.skip("a whole file has no place for a key; its contents are compared")
    subject.effect.perform(KEY)
    assert KEY in subject.carried()
