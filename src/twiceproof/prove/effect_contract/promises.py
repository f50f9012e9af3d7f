"""What every effect promises: once for one key, found after a lost answer, and no look that writes or guesses."""

from __future__ import annotations

import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ...effects.base import Absent, Effect, Happened, Unknown, look_of
from ...errors import NotDone, OutcomeUnknown
from .case import KEY, EffectCase, EffectTrial

__all__ = ["EffectContract"]

ATTEMPTS = 8  # at once


def again(effect: Effect[Any]) -> Any:
    """Do after a lost answer what the engine does: ask where it can ask, else repeat where that is harmless."""
    if effect.repeat.kind == "check":
        look = look_of(effect.look(KEY))
        return look.receipt if isinstance(look, Happened) else effect.perform(KEY)
    return effect.perform(KEY)


class EffectContract(EffectCase):
    """What every effect guarantees."""

    def test_it_describes_itself_and_does_nothing(self, trial: EffectTrial) -> None:
        effect = trial.effect
        assert isinstance(effect, Effect) and effect.name
        assert effect.repeat.kind in ("safe", "keyed", "check")
        described = json.dumps(effect.describe())
        assert described == json.dumps(effect.describe())
        assert not self.secret or self.secret not in described
        assert trial.state() == trial.state() and trial.count() == 0

    def test_before_it_is_performed_it_is_absent(self, trial: EffectTrial) -> None:
        assert look_of(trial.effect.look(KEY)) == Absent()

    def test_performed_twice_with_one_key_it_happens_once(self, trial: EffectTrial) -> None:
        first = trial.effect.perform(KEY)
        second = again(trial.effect)
        assert trial.count() == 1
        assert type(first) is type(second)
        assert trial.effect.result_type in (type(first), Any)

    def test_when_its_answer_is_lost_it_is_found_and_does_not_happen_again(self, trial: EffectTrial) -> None:
        trial.lose_answer()
        with contextlib.suppress(OutcomeUnknown):  # some find out by themselves
            trial.effect.perform(KEY)
        assert trial.count() == 1
        assert isinstance(look_of(trial.effect.look(KEY)), Happened)
        again(trial.effect)
        assert trial.count() == 1

    def test_a_clean_refusal_leaves_nothing(self, trial: EffectTrial) -> None:
        trial.refuse()
        with pytest.raises(NotDone):
            trial.effect.perform(KEY)
        try:
            left = trial.count()
        except Exception:  # noqa: BLE001 - the destination itself was taken away, so that it refuses
            return
        assert left == 0

    def test_looking_changes_nothing(self, trial: EffectTrial) -> None:
        before = trial.state()
        trial.effect.look(KEY)
        assert trial.state() == before
        trial.effect.perform(KEY)
        after = trial.state()
        assert isinstance(look_of(trial.effect.look(KEY)), Happened)
        assert trial.state() == after

    def test_a_look_that_fails_is_unknown(self, trial: EffectTrial) -> None:
        assert isinstance(look_of(trial.unreachable.look(KEY)), Unknown)

    def test_a_look_that_is_answered_with_an_error_is_unknown(self, trial: EffectTrial) -> None:
        if trial.blind is None:
            pytest.skip("no server answers its look")
        trial.effect.perform(KEY)
        trial.blind()
        assert isinstance(look_of(trial.effect.look(KEY)), Unknown)
        assert trial.count() == 1

    def test_attempts_at_once_make_one_effect(self, trial: EffectTrial) -> None:
        if not trial.concurrent:
            pytest.skip("the destination cannot tell; the claim on the run keeps attempts apart")

        def attempt(_: int) -> Any:
            with contextlib.suppress(NotDone):
                return trial.effect.perform(KEY)

        with ThreadPoolExecutor(ATTEMPTS) as pool:
            results = list(pool.map(attempt, range(ATTEMPTS)))
        assert any(results)
        assert trial.count() == 1

    def test_the_effect_key_is_at_the_destination(self, trial: EffectTrial) -> None:
        if trial.carried is None:
            pytest.skip("there is no place for a key; its contents are compared")
        trial.effect.perform(KEY)
        assert KEY in trial.carried()
