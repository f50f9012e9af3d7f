"""The retry policy: what may be written, when the next start is, and when there is none."""

from __future__ import annotations

from typing import Any

import pytest

from twiceproof import App, Misuse, Retry
from twiceproof.effects.repeat import as_retry


@pytest.mark.parametrize("attempts", [0, -1, True, 2.0, "3", None])
def test_what_is_no_number_of_starts_is_refused(attempts: Any) -> None:
    with pytest.raises(Misuse, match="is not a number of starts; give 1 or more"):
        Retry(attempts=attempts)


def test_one_start_is_a_policy() -> None:
    assert Retry(attempts=1).attempts == 1


@pytest.mark.parametrize("given", [3, "3", True, {"attempts": 3}])
def test_what_is_no_policy_is_refused_where_it_is_declared(given: Any) -> None:
    app = App("memory://")
    with pytest.raises(Misuse, match=r"is no policy; write retry=Retry\(attempts=3\)"):
        app.step(repeat="safe", retry=given)(lambda: None)


def test_a_policy_is_taken_as_it_is() -> None:
    policy = Retry(attempts=3)
    assert as_retry(policy) is policy


def longest(*_: Any) -> float:
    return 1.0


def test_a_start_at_the_very_end_of_its_time_is_the_last_one() -> None:
    policy = Retry(attempts=9, first="10s", most="10s", within="60s")
    assert policy.delay(1, 50.0, None, longest) == 10.0
    assert policy.delay(1, 50.1, None, longest) is None
    assert policy.may_start(2, 60.0)
    assert not policy.may_start(2, 60.1)


def test_the_other_side_may_ask_for_a_longer_pause_and_not_for_a_shorter_one() -> None:
    policy = Retry(attempts=9, first="10s", most="10s", within="1h")
    assert policy.delay(1, 0.0, 25.0, longest) == 25.0
    assert policy.delay(1, 0.0, 2.0, longest) == 10.0
    assert policy.delay(1, 0.0, 3_601.0, longest) is None


@pytest.mark.parametrize("given", ["ValueError", (ValueError, 3), ValueError("no"), KeyboardInterrupt])
def test_what_is_no_exception_class_cannot_be_given_up_on(given: Any) -> None:
    with pytest.raises(Misuse, match=r"is no exception class; write never_on=\(CardDeclined,\)"):
        Retry(never_on=given)


def test_an_error_is_given_up_on_by_its_class_and_in_a_group() -> None:
    policy = Retry(never_on=LookupError)
    assert policy.gives_up_on(KeyError("a")) and policy.gives_up_on(ExceptionGroup("two", [ValueError(), KeyError()]))
    assert not policy.gives_up_on(ValueError()) and not Retry().gives_up_on(KeyError())


@pytest.mark.parametrize("retry", [3, 0, "3"])
def test_a_bare_number_is_no_retry_policy(tmp_path, retry):
    with App(f"sqlite:///{tmp_path}/ledger.db") as app:
        for declare in (app.step, app.transaction):
            with pytest.raises(Misuse, match=r"write retry=Retry\(attempts=3\)"):
                declare(retry=retry)


def test_no_policy_is_the_usual_one():
    with App("memory://") as app:
        assert app.step(retry=None)(_nothing).step.plan.retry == Retry()


def _nothing(): ...
