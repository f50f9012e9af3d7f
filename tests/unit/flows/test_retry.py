"""The retry policy: what may be written, when the next start is, and when there is none."""

from __future__ import annotations

import builtins
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


# -- policies by class of error --------------------------------------------------------------------


class Refused(Exception): ...


class RateLimited(Refused): ...


class Slowed(RateLimited): ...


OUTER, OFTEN, SELDOM = Retry(attempts=2), Retry(attempts=50, first="30s"), Retry(attempts=1)


def policy(**options: Any) -> Retry:
    return Retry(attempts=2, on={Refused: SELDOM, RateLimited: OFTEN}, **options)


@pytest.mark.parametrize(
    ("error", "attempts"), [(RateLimited(), 50), (Slowed(), 50), (Refused(), 1), (ValueError(), 2), (Exception(), 2)]
)
def test_the_declared_class_nearest_to_the_errors_own_decides(error: Exception, attempts: int) -> None:
    declared = policy()
    assert declared.policy_of(declared.decided_by(error)).attempts == attempts


def test_the_order_in_which_classes_are_declared_does_not_count() -> None:
    turned = Retry(on={RateLimited: OFTEN, Refused: SELDOM})
    assert turned.decided_by(Slowed()) == policy().decided_by(Slowed())


def test_of_a_group_the_error_with_the_fewest_starts_decides() -> None:
    declared = policy()
    group = ExceptionGroup("two", [RateLimited(), ExceptionGroup("inner", [Refused()])])
    assert declared.policy_of(declared.decided_by(group)) is SELDOM
    assert declared.policy_of(declared.decided_by(ExceptionGroup("one", [RateLimited()]))) is OFTEN
    whole = Retry(on={ExceptionGroup: OFTEN, Refused: SELDOM})
    assert whole.policy_of(whole.decided_by(group)) is OFTEN


def test_a_class_is_known_again_where_its_module_has_another_name() -> None:
    declared = policy()
    assert declared.policy_of("__main__:RateLimited") is OFTEN
    assert declared.policy_of("__main__:Gone") is declared and declared.policy_of("") is declared


def test_two_classes_of_one_name_are_told_apart_by_their_modules() -> None:
    class TimeoutError(Exception): ...  # noqa: A001 - as libraries have it

    TimeoutError.__qualname__ = "TimeoutError"
    declared = Retry(on={TimeoutError: SELDOM, builtins.TimeoutError: OFTEN})
    assert declared.policy_of("builtins:TimeoutError") is OFTEN
    assert declared.policy_of(f"{__name__}:TimeoutError") is SELDOM


@pytest.mark.parametrize("kind", ["ValueError", ValueError("no"), KeyboardInterrupt, (ValueError, KeyError)])
def test_only_an_exception_class_has_a_policy(kind: Any) -> None:
    with pytest.raises(Misuse, match=r"is no exception class; write on=\{RateLimited: Retry\(attempts=50\)\}"):
        Retry(on={kind: OFTEN})


@pytest.mark.parametrize("given", [OFTEN, [ValueError], ValueError, None])
def test_what_is_no_mapping_is_refused_as_policies(given: Any) -> None:
    with pytest.raises(Misuse, match="is no mapping; write on="):
        Retry(on=given)


@pytest.mark.parametrize("given", [3, None, {"attempts": 3}])
def test_what_is_no_policy_is_refused_for_a_class(given: Any) -> None:
    with pytest.raises(Misuse, match="has no policy; write on="):
        Retry(on={ValueError: given})


@pytest.mark.parametrize("inner", [Retry(on={KeyError: SELDOM}), Retry(never_on=KeyError)])
def test_a_policy_for_a_class_has_none_of_its_own(inner: Retry) -> None:
    with pytest.raises(Misuse, match="The policy for LookupError has its own on= or never_on="):
        Retry(on={LookupError: inner})


@pytest.mark.parametrize("never", [Slowed, RateLimited, Refused])
def test_a_policy_that_never_on_would_keep_from_use_is_refused(never: Any) -> None:
    if never is Slowed:  # the rest of RateLimited is tried again
        assert Retry(on={RateLimited: OFTEN}, never_on=never).gives_up_on(Slowed())
        return
    with pytest.raises(Misuse, match="RateLimited is in on= and, by its class, in never_on="):
        Retry(on={RateLimited: OFTEN}, never_on=never)


def test_a_declared_mapping_that_is_changed_later_changes_nothing() -> None:
    given: dict[type[Exception], Retry] = {RateLimited: OFTEN}
    declared = Retry(on=given)
    given.clear()
    assert declared.on == {RateLimited: OFTEN}
