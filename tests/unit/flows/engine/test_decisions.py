"""The table of docs/why/steps.md: declared x clean, ambiguous, other, crash. Each cell as seen from outside."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from tests.unit.flows.stage import Died, Stage, Style
from tests.unit.flows.waits import work
from twiceproof import (
    Absent,
    Happened,
    Misuse,
    NeedsReview,
    NotDone,
    OutcomeUnknown,
    Retry,
    StepFailed,
    Unknown,
    Waiting,
    check,
    keyed,
)

CLEAN = [NotDone("no"), ConnectionRefusedError(), socket.gaierror()]
AMBIGUOUS = [TimeoutError(), ConnectionResetError()]
QUICK = Retry(attempts=3, first=0.01, most=0.01)


def probe_of(stage: Stage, answer: Any = None) -> Any:
    """Looks at the outside itself, unless told what to say."""

    def find(order: int) -> Any:
        if answer is not None:
            return answer
        return Happened("paid") if stage.effects["pay"] else Absent

    return find


def declared(stage: Stage, name: str) -> Any:
    return check(probe_of(stage), settling=2.0) if name == "check" else name


def pay_flow(
    stage: Stage, style: Style, repeat: Any, errors: list[BaseException], *, done: bool = True, **process: Any
) -> Any:
    """A flow of one step. It raises the errors in turn, each after its effect was done (or not), then succeeds."""
    app = stage.process(**process)

    def pay(order: int) -> str:
        error = errors.pop(0) if errors else None
        if error is None or done:
            stage.do("pay")
        if error is not None:
            raise error
        return "paid"

    step = style.step(app, pay, repeat=repeat, retry=QUICK)

    def steps(order: int) -> Any:
        return (yield step(order))

    return style.flow(app, steps)


@pytest.mark.parametrize("repeat", ["safe", "keyed", "check", "never"])
@pytest.mark.parametrize("error", CLEAN, ids=lambda error: type(error).__name__)
def test_after_a_clean_error_every_step_is_tried_again(
    stage: Stage, style: Style, repeat: str, error: Exception
) -> None:
    flow = pay_flow(stage, style, declared(stage, repeat), [error], done=False)
    assert flow(1) == "paid"
    assert stage.effects == {"pay": 1}
    assert stage.entries("sync", "order:1")["pay"].note.starts == 2


@pytest.mark.parametrize("repeat", ["safe", "keyed"])
@pytest.mark.parametrize("error", AMBIGUOUS, ids=lambda error: type(error).__name__)
def test_after_an_ambiguous_error_a_safe_or_keyed_step_is_tried_again(
    stage: Stage, style: Style, repeat: str, error: Exception
) -> None:
    assert pay_flow(stage, style, repeat, [error])(1) == "paid"
    assert stage.effects == {"pay": 2}


@pytest.mark.parametrize("error", AMBIGUOUS, ids=lambda error: type(error).__name__)
def test_after_an_ambiguous_error_a_never_step_goes_to_a_person(stage: Stage, style: Style, error: Exception) -> None:
    flow = pay_flow(stage, style, "never", [error])
    for _ in range(2):
        with pytest.raises(NeedsReview, match="pay: no answer came"):
            flow(1)
    assert stage.effects == {"pay": 1}
    assert stage.entries("sync", "order:1")["pay"].state == "unknown"


def test_an_undeclared_step_is_a_never_step(stage: Stage) -> None:
    app = stage.process()

    @app.step
    def pay(order: int) -> None:
        stage.do("pay")
        raise TimeoutError

    @app.flow(key="order:{order}")
    def sync(order: int) -> None:
        pay(order)

    with pytest.raises(NeedsReview):
        sync(1)


def test_after_an_ambiguous_error_a_check_step_looks_and_adopts_what_it_finds(stage: Stage, style: Style) -> None:
    assert pay_flow(stage, style, declared(stage, "check"), [TimeoutError()])(1) == "paid"
    assert stage.effects == {"pay": 1}
    assert stage.clock.pauses[-1] == pytest.approx(2.0)  # not before it had time to settle


def test_after_an_ambiguous_error_a_check_step_that_is_absent_is_done(stage: Stage, style: Style) -> None:
    assert pay_flow(stage, style, declared(stage, "check"), [TimeoutError()], done=False)(1) == "paid"
    assert stage.effects == {"pay": 1}


class Busy(Exception):
    """HTTP 503: ambiguous."""

    status_code = 503

    def __init__(self, retry_after: float | None = None) -> None:
        super().__init__("busy")
        self.retry_after = retry_after


def started_at(stage: Stage, style: Style, repeat: Any, error: Exception, retry: Retry, *, every: float) -> list[float]:
    """When a step that always fails so is started: a worker looks every so many seconds."""
    app, times = stage.process(), []
    app.runtime.roll = lambda: 1.0

    def pay(order: int) -> None:
        times.append(stage.clock.now())
        raise error

    step = style.step(app, pay, repeat=repeat, retry=retry)

    def body(order: int) -> Any:
        return (yield step(order))

    with pytest.raises(Waiting):
        style.flow(app, body)(1)
    for _ in range(100):
        stage.clock.advance(every)
        work(app)
    return [when - times[0] for when in times]


@pytest.mark.parametrize("repeat", ["safe", "keyed", "check"])
def test_what_is_tried_again_keeps_to_the_pause_that_the_other_side_asked_for(
    stage: Stage, style: Style, repeat: str
) -> None:
    kind = check(lambda order: Absent, settling=0) if repeat == "check" else repeat
    found = started_at(stage, style, kind, Busy(600.0), Retry(attempts=4, first=10.0), every=60.0)
    assert found == pytest.approx([0.0, 600.0, 1_200.0, 1_800.0], abs=100.0)


@pytest.mark.parametrize("repeat", ["safe", "keyed", "check"])
def test_and_waits_longer_each_time(stage: Stage, style: Style, repeat: str) -> None:
    kind = check(lambda order: Absent, settling=0) if repeat == "check" else repeat
    found = started_at(stage, style, kind, Busy(), Retry(attempts=4, first=100.0), every=10.0)
    assert found == pytest.approx([0.0, 100.0, 300.0, 700.0], abs=40.0)


@pytest.mark.parametrize("repeat", ["safe", "keyed", "check"])
def test_and_no_longer_than_its_policy_allows(stage: Stage, style: Style, repeat: str) -> None:
    kind = check(lambda order: Absent, settling=0) if repeat == "check" else repeat
    retry = Retry(attempts=9, first=100.0, within=400.0)
    assert len(started_at(stage, style, kind, Busy(), retry, every=10.0)) == 3


def test_a_settling_time_that_is_longer_than_the_pause_is_waited_for(stage: Stage, style: Style) -> None:
    kind = check(lambda order: Absent, settling=300.0)
    found = started_at(stage, style, kind, Busy(), Retry(attempts=3, first=10.0), every=10.0)
    assert found == pytest.approx([0.0, 300.0, 600.0], abs=40.0)


def left_alone(stage: Stage, style: Style, repeat: Any, error: Exception, hours: float) -> Any:
    """A step fails, may be tried again within two hours, and nobody is there for so many. What it says then."""
    app = stage.process()

    def pay(order: int) -> str:
        stage.do("pay")
        if stage.effects["pay"] == 1:
            raise error
        return "paid"

    step = style.step(app, pay, repeat=repeat, retry=Retry(attempts=8, first="30m", most="1h", within="2h"))

    def steps(order: int) -> Any:
        try:
            return (yield step(order))
        except StepFailed as failed:
            return str(failed)

    flow = style.flow(app, steps)
    with pytest.raises(Waiting):
        flow(1)
    stage.clock.advance(hours * 3_600)
    return flow(1)


@pytest.mark.parametrize("repeat", ["safe", "keyed", "never"])
def test_what_was_due_while_nobody_was_there_fails_when_its_time_is_over(
    stage: Stage, style: Style, repeat: str
) -> None:
    assert "pay failed: NotDone: no" in left_alone(stage, style, repeat, NotDone("no"), 10)
    assert stage.effects == {"pay": 1}
    assert stage.entries("sync", "order:1")["pay"].state == "failed"


@pytest.mark.parametrize("repeat", ["safe", "keyed", "never"])
def test_and_is_tried_again_while_it_is_not(stage: Stage, style: Style, repeat: str) -> None:
    assert left_alone(stage, style, repeat, NotDone("no"), 1.5) == "paid"
    assert stage.effects == {"pay": 2}


def test_a_keyed_step_of_which_nobody_knows_goes_to_a_person_when_its_time_is_over(stage: Stage, style: Style) -> None:
    with pytest.raises(NeedsReview, match="its time is over after 1 attempts: whether it was done is unknown"):
        left_alone(stage, style, "keyed", TimeoutError(), 10)
    assert stage.effects == {"pay": 1}


def test_a_failed_step_that_is_tried_again_by_a_persons_word_has_its_time_anew(stage: Stage, style: Style) -> None:
    flow = pay_flow(stage, style, "never", [NotDone("declined", final=True)], done=False)
    with pytest.raises(NotDone, match="declined"):
        flow(1)
    stage.clock.advance(10 * 86_400)
    assert flow.retry(1) == "paid"


@pytest.mark.parametrize("answer", [Unknown("busy"), "nonsense"])
def test_a_check_step_whose_destination_cannot_tell_goes_to_a_person(stage: Stage, style: Style, answer: Any) -> None:
    repeat = check(probe_of(stage, answer), settling=0.0)
    with pytest.raises(NeedsReview, match="cannot tell"):
        pay_flow(stage, style, repeat, [TimeoutError()])(1)


def test_a_probe_that_fails_tells_nothing(stage: Stage, style: Style) -> None:
    def find(order: int) -> Any:
        raise OSError("down")

    with pytest.raises(NeedsReview, match="the probe failed with OSError"):
        pay_flow(stage, style, check(find, settling=0.0), [TimeoutError()])(1)


def failing_probe(stage: Stage, failures: int, looks: list[int]) -> Any:
    """Fails so many times, then looks. The destination is down, and comes back."""

    def find(order: int) -> Any:
        looks.append(order)
        if len(looks) <= failures:
            raise OSError("down")
        return Happened("paid") if stage.effects["pay"] else Absent

    return find


@pytest.mark.parametrize("done", [True, False])
def test_a_look_that_fails_is_tried_again_by_the_retry_policy(stage: Stage, style: Style, done: bool) -> None:
    looks: list[int] = []
    repeat = check(failing_probe(stage, QUICK.attempts - 1, looks), settling=0.0)
    assert pay_flow(stage, style, repeat, [TimeoutError()], done=done)(1) == "paid"
    assert (stage.effects, len(looks)) == ({"pay": 1}, QUICK.attempts)


def test_a_look_that_fails_as_often_as_the_policy_allows_goes_to_a_person(stage: Stage, style: Style) -> None:
    looks: list[int] = []
    flow = pay_flow(stage, style, check(failing_probe(stage, 99, looks), settling=0.0), [TimeoutError()])
    with pytest.raises(NeedsReview, match="cannot tell whether it was done: the probe failed with OSError: down"):
        flow(1)
    assert (stage.effects, len(looks)) == ({"pay": 1}, QUICK.attempts)


def test_a_step_that_may_be_tried_only_once_is_looked_for_only_once(stage: Stage, style: Style) -> None:
    looks: list[int] = []
    app = stage.process()

    def pay(order: int) -> str:
        raise TimeoutError

    step = style.step(app, pay, repeat=check(failing_probe(stage, 1, looks), settling=0.0), retry=Retry(attempts=1))

    def steps(order: int) -> Any:
        return (yield step(order))

    with pytest.raises(NeedsReview, match="the probe failed"):
        style.flow(app, steps)(1)
    assert looks == [1]


def test_a_destination_that_answers_and_cannot_tell_is_not_asked_again(stage: Stage, style: Style) -> None:
    looks: list[int] = []

    def find(order: int) -> Unknown:
        looks.append(order)
        return Unknown("two of them")

    with pytest.raises(NeedsReview, match="two of them"):
        pay_flow(stage, style, check(find, settling=0.0), [TimeoutError()])(1)
    assert looks == [1]


def test_a_run_waits_without_a_worker_until_a_failed_look_is_tried_again(stage: Stage) -> None:
    """What failed is counted in the ledger: with each look in another process, the count still ends."""
    looks: list[int] = []
    slow = Retry(attempts=3, first="10m", most="10m", within="9d")

    def declare() -> Any:
        app = stage.process()

        @app.step(repeat=check(failing_probe(stage, 99, looks), settling=0.0), retry=slow)
        def pay(order: int) -> str:
            stage.do("pay")
            raise TimeoutError

        @app.flow(key="o:{order}")
        def sell(order: int) -> str:
            return pay(order)

        return app, sell

    declare()[1].start(1)
    runs = []
    for _ in range(slow.attempts + 1):  # the attempt, and the looks
        declare()[0].worker().run(until_idle=True)
        runs.append(stage.process().history("sell/o:1").run)
        stage.clock.advance(601)
    assert [run.state for run in runs] == ["waiting", "waiting", "waiting", "review"]
    assert "pay will be looked for at its destination at" in runs[0].reason and "(TimeoutError)" in runs[0].reason
    assert "(the probe failed with OSError: down)" in runs[1].reason
    assert (stage.effects, len(looks)) == ({"pay": 1}, slow.attempts)


def test_a_keyed_step_is_not_tried_after_the_provider_has_forgotten_the_key(stage: Stage, style: Style) -> None:
    slow = Retry(attempts=3, first=200.0)
    app = stage.process()

    def pay(order: int) -> str:
        raise TimeoutError

    step = style.step(app, pay, repeat=keyed(window="1m"), retry=slow)

    def steps(order: int) -> Any:
        return (yield step(order))

    with pytest.raises(NeedsReview, match="forgets keys after 60 s"):
        style.flow(app, steps)(1)


HALF_HOURLY = Retry(attempts=8, first="30m", most="30m", within="9d")


def test_a_bug_in_a_keyed_step_is_not_repeated_after_its_key_is_forgotten(stage: Stage, style: Style) -> None:
    """Say, its answer could not be read: then it was done, and sent once more it would be done again."""
    found = started_at(stage, style, keyed(window="1h"), KeyError("id"), HALF_HOURLY, every=600.0)
    assert found == pytest.approx([0.0, 1_800.0, 3_600.0], abs=10.0)
    assert stage.record("sync", "order:1").state == "review"
    reason = stage.entries("sync", "order:1")["pay"].note.reason
    assert reason == "its error does not tell whether it was done, and the provider forgets keys after 3600 s"


@pytest.mark.parametrize("repeat", ["safe", keyed(window="9d")], ids=["safe", "keyed for long"])
def test_a_bug_is_repeated_by_policy_where_that_does_no_harm(stage: Stage, style: Style, repeat: Any) -> None:
    assert len(started_at(stage, style, repeat, KeyError("id"), HALF_HOURLY, every=600.0)) == 8
    assert stage.record("sync", "order:1").state == "failed"


@pytest.mark.parametrize(
    ("errors", "pays"),
    [([KeyError("id")], 1), ([KeyError("id"), NotDone("no")], 2), ([NotDone("no"), NotDone("no")], 3)],
    ids=["a bug", "a bug and a clean error", "clean errors"],
)
def test_a_key_forgotten_while_nobody_was_there_is_used_only_if_nothing_was_done(
    stage: Stage, style: Style, errors: list[Exception], pays: int
) -> None:
    app = stage.process()
    app.runtime.roll = lambda: 1.0
    left = list(errors)

    def pay(order: int) -> str:
        stage.do("pay")
        if left:
            raise left.pop(0)
        return "paid"

    step = style.step(app, pay, repeat=keyed(window="2h"), retry=HALF_HOURLY)

    def steps(order: int) -> Any:
        return (yield step(order))

    flow = style.flow(app, steps)
    for _ in errors:
        with pytest.raises(Waiting):
            flow(1)
        stage.clock.advance(1_800)
    stage.clock.advance(3 * 3_600)
    if pays == 3:
        assert flow(1) == "paid"
    else:
        with pytest.raises(NeedsReview, match="its error does not tell whether it was done"):
            flow(1)
    assert stage.effects == {"pay": pays}


@pytest.mark.parametrize("repeat", ["safe", "keyed", "check"])
def test_a_bug_in_a_repeatable_step_is_tried_again_by_policy(stage: Stage, style: Style, repeat: str) -> None:
    assert pay_flow(stage, style, declared(stage, repeat), [ValueError("bug")], done=False)(1) == "paid"
    assert stage.effects == {"pay": 1}


def test_an_error_of_a_never_step_that_nobody_knows_leaves_its_outcome_unknown(stage: Stage, style: Style) -> None:
    error = ValueError("the receipt cannot be read")
    flow = pay_flow(stage, style, "never", [error])
    with pytest.raises(NeedsReview, match="its error does not tell whether it was done") as told:
        flow(1)
    assert told.value.__cause__ is error
    with pytest.raises(NeedsReview):
        flow(1)
    assert stage.record("sync", "order:1").state == "review"
    assert stage.effects == {"pay": 1}


def test_a_refusal_of_a_never_step_that_no_retry_cures_fails_the_run_at_once(stage: Stage, style: Style) -> None:
    flow = pay_flow(stage, style, "never", [NotDone("declined", final=True)], done=False)
    with pytest.raises(NotDone, match="declined"):
        flow(1)
    assert stage.record("sync", "order:1").state == "failed"
    assert flow.retry(1) == "paid"  # only an explicit word runs it again
    assert stage.effects == {"pay": 1}


# -- crashes: the effect was done, and the process died before it could be recorded -----------------


@pytest.mark.parametrize("repeat", ["safe", "keyed"])
def test_a_safe_or_keyed_step_that_was_cut_off_is_done_again(stage: Stage, style: Style, repeat: str) -> None:
    with pytest.raises(Died):
        pay_flow(stage, style, repeat, [], at=2)(1)
    stage.lapse()
    assert pay_flow(stage, style, repeat, [])(1) == "paid"
    assert stage.effects == {"pay": 2}


def test_a_never_step_that_was_cut_off_goes_to_a_person(stage: Stage, style: Style) -> None:
    with pytest.raises(Died):
        pay_flow(stage, style, "never", [], at=3)(1)
    assert stage.effects == {"pay": 1}
    stage.lapse()
    with pytest.raises(NeedsReview, match="its outcome is unknown"):
        pay_flow(stage, style, "never", [])(1)
    assert stage.effects == {"pay": 1}


def test_a_never_step_that_was_surely_not_begun_is_begun(stage: Stage, style: Style) -> None:
    with pytest.raises(Died):
        pay_flow(stage, style, "never", [], at=2)(1)  # its start was to be written, and was not
    assert not stage.effects
    stage.lapse()
    assert pay_flow(stage, style, "never", [])(1) == "paid"
    assert stage.effects == {"pay": 1}


def test_a_check_step_that_was_cut_off_is_found(stage: Stage, style: Style) -> None:
    with pytest.raises(Died):
        pay_flow(stage, style, declared(stage, "check"), [], at=3)(1)
    stage.lapse()
    assert pay_flow(stage, style, declared(stage, "check"), [])(1) == "paid"
    assert stage.effects == {"pay": 1}


def test_a_step_that_is_killed_again_and_again_ends_in_review(stage: Stage, style: Style) -> None:
    for attempt in range(3):
        with pytest.raises(Died):  # the second time on, its start is written first: one commit more
            pay_flow(stage, style, "safe", [], at=2 if attempt == 0 else 3)(1)
        stage.lapse()
    with pytest.raises(NeedsReview, match="started 3 times and never came to an end"):
        pay_flow(stage, style, "safe", [])(1)
    assert stage.effects == {"pay": 3}


def test_a_transactional_step_that_kills_its_process_is_not_begun_for_ever() -> None:
    """The database has not kept it, so a crash or two are forgiven, whatever the policy; then a person looks."""
    from twiceproof.effects.repeat import TRANSACTION
    from twiceproof.flows.engine.decisions import Act, NeedsPerson, StepPlan, on_reached
    from twiceproof.flows.engine.ledger import STARTED, Entry, EntryNote

    plan = StepPlan(TRANSACTION, Retry(attempts=1))
    assert on_reached(plan, None, 100.0, crashed=True, since=50.0) == Act(2, intent=True)
    begun = [Entry("reserve", STARTED, EntryNote(starts=starts, first_at=50.0), "1", 50.0) for starts in (2, 3)]
    assert on_reached(plan, begun[0], 100.0, crashed=True, since=50.0) == Act(3, intent=True)
    assert isinstance(on_reached(plan, begun[1], 100.0, crashed=True, since=50.0), NeedsPerson)


def test_an_attempt_that_was_killed_counts_beside_those_that_failed() -> None:
    """One failed and is on record, one was killed and left no trace: the next one is the third."""
    from twiceproof.effects.repeat import SAFE
    from twiceproof.flows.engine.decisions import Act, NeedsPerson, StepPlan, on_reached
    from twiceproof.flows.engine.ledger import RETRY, Entry, EntryNote

    failed = Entry("pay", RETRY, EntryNote(starts=1, first_at=50.0), "1", 50.0)
    assert on_reached(StepPlan(SAFE, Retry(attempts=3)), failed, 51.0, crashed=True, since=50.0) == Act(3, intent=True)
    assert on_reached(StepPlan(SAFE, Retry(attempts=3)), failed, 51.0, crashed=False, since=50.0) == Act(2)
    assert isinstance(
        on_reached(StepPlan(SAFE, Retry(attempts=2)), failed, 51.0, crashed=True, since=50.0), NeedsPerson
    )


def test_a_first_pause_that_would_be_cut_short_is_refused() -> None:
    with pytest.raises(Misuse, match="give a longer most="):
        Retry(first="1h")
    assert Retry(first="1h", most="1h").first == 3_600


def test_a_step_may_be_tried_thousands_of_times() -> None:
    patient = Retry(attempts=5_000, most="1m", within="30d")
    assert [patient.delay(starts, 0.0, None, lambda: 1.0) for starts in (1, 7, 1_025, 4_999)] == [1, 60, 60, 60]
    assert patient.delay(5_000, 0.0, None, lambda: 1.0) is None


class Unheard(Exception):
    """A client's own error, which says nothing by itself."""


def test_what_the_user_says_of_an_error_holds_for_a_task_group_too(stage: Stage) -> None:
    app = stage.process()
    app.classify(Unheard, "ambiguous")

    @app.step(repeat="never")
    async def pay(order: int) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(send())

    async def send() -> None:
        stage.do("pay")
        raise Unheard

    @app.flow(key="order:{order}")
    async def sync(order: int) -> None:
        await pay(order)

    with pytest.raises(NeedsReview):
        asyncio.run(sync(1))


# -- no, and not again ---------------------------------------------------------------------------


class NoSuchAccount(Exception): ...


@pytest.mark.parametrize("repeat", ["safe", "keyed", "check", "never"])
@pytest.mark.parametrize("said", ["NotDone", "classify", "not_done and never_on"])
def test_after_a_refusal_that_no_retry_cures_no_step_is_tried_again(
    stage: Stage, style: Style, repeat: str, said: str
) -> None:
    app, starts = stage.process(), []
    error = NotDone("no such account", final=True) if said == "NotDone" else NoSuchAccount("no such account")
    if said == "classify":
        app.classify(NoSuchAccount, "final")

    def pay(order: int) -> None:
        starts.append(order)
        raise error

    more: dict[str, Any] = {}
    if said == "not_done and never_on":
        more = {"not_done": NoSuchAccount, "retry": Retry(never_on=NoSuchAccount)}
    step = style.step(app, pay, repeat=declared(stage, repeat), **more)

    def steps(order: int) -> Any:
        return (yield step(order))

    flow = style.flow(app, steps)
    with pytest.raises(type(error)) as told:
        flow(1)
    assert (told.value, starts) == (error, [1])
    assert stage.record("sync", "order:1").state == "failed"


def test_after_an_error_of_another_kind_a_step_that_gives_up_on_some_is_tried_again(stage: Stage) -> None:
    app, errors = stage.process(), [ValueError("moody"), NoSuchAccount("no")]

    @app.step(repeat="safe", retry=Retry(first=0.01, most=0.01, never_on=(NoSuchAccount, KeyError)))
    def pay(order: int) -> None:
        stage.do("pay")
        raise errors.pop(0)

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> None:
        pay(order)

    with pytest.raises(NoSuchAccount):
        sync(1)
    assert stage.effects == {"pay": 2}


def test_a_final_refusal_of_a_keyed_step_that_had_no_answer_before_is_for_a_person(stage: Stage, style: Style) -> None:
    flow = pay_flow(stage, style, "keyed", [TimeoutError("lost"), NotDone("no", final=True)])
    with pytest.raises(NeedsReview, match="whether it was done is unknown"):
        flow(1)


@pytest.mark.parametrize("done", [True, False])
def test_a_check_step_that_gives_up_on_an_error_looks_first_whether_it_was_done(stage: Stage, done: bool) -> None:
    app = stage.process()

    @app.step(repeat=check(probe_of(stage), settling=1.0), retry=Retry(never_on=NoSuchAccount))
    def pay(order: int) -> str:
        stage.effects["starts"] += 1
        if done:
            stage.do("pay")
        raise NoSuchAccount("no")

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        return pay(order)

    if done:
        assert sync(1) == "paid"
    else:
        with pytest.raises(StepFailed, match="NoSuchAccount: no"):
            sync(1)
    assert stage.effects["starts"] == 1


def test_nothing_is_undone_around_an_error_that_nobody_knows(stage: Stage) -> None:
    """The hotel was cancelled, and the card charged."""
    app = stage.process()

    @app.step(repeat="safe", undo=lambda: stage.do("cancel"))
    def book() -> None:
        stage.do("book")

    @app.step(repeat="never")
    def charge() -> None:
        stage.do("charge")
        raise RuntimeError("the client's own")

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> None:
        book()
        charge()

    with pytest.raises(NeedsReview, match=r"charge: its error does not tell .* \(RuntimeError: the client's own\)"):
        sync(1)
    work(app)
    assert stage.effects == {"book": 1, "charge": 1}
    assert stage.entries("sync", "order:1")["charge"].note.fault.type == "RuntimeError"


# -- a key that no longer helps, at a destination that can be asked ------------------------------


def keyed_and_asked(stage: Stage, answer: Any = None, window: str = "24h") -> Any:
    return keyed(window=window, look=probe_of(stage, answer), settling=2.0)


def test_a_keyed_step_with_a_look_is_tried_again_while_its_key_helps(stage: Stage, style: Style) -> None:
    assert pay_flow(stage, style, keyed_and_asked(stage, Unknown("not asked")), [TimeoutError()])(1) == "paid"
    assert stage.effects == {"pay": 2}  # the provider would have answered the second by its key


def test_an_error_that_the_same_key_repeats_is_looked_up_at_once(stage: Stage, style: Style) -> None:
    sticky = OutcomeUnknown("the same 500 again", repeats=True)
    assert pay_flow(stage, style, keyed_and_asked(stage), [sticky])(1) == "paid"
    assert stage.effects == {"pay": 1}


def test_such_an_error_of_what_is_absent_fails_and_is_not_tried_again(stage: Stage, style: Style) -> None:
    sticky = OutcomeUnknown("the same 500 again", repeats=True)
    with pytest.raises(StepFailed, match="the same 500 again"):
        pay_flow(stage, style, keyed_and_asked(stage), [sticky], done=False)(1)
    assert stage.effects == {}


@pytest.mark.parametrize("repeat", ["keyed", "never"])
def test_such_an_error_without_a_look_goes_to_a_person_at_once(stage: Stage, style: Style, repeat: str) -> None:
    with pytest.raises(NeedsReview):
        pay_flow(stage, style, repeat, [OutcomeUnknown("the same 500 again", repeats=True)])(1)
    assert stage.effects == {"pay": 1}


def test_an_unknown_outcome_that_a_key_cures_is_tried_again(stage: Stage, style: Style) -> None:
    assert pay_flow(stage, style, "keyed", [OutcomeUnknown("no answer")])(1) == "paid"
    assert stage.effects == {"pay": 2}


@pytest.mark.parametrize("done", [True, False])
def test_a_forgotten_key_is_looked_up_and_not_used_blindly(stage: Stage, style: Style, done: bool) -> None:
    app, slow, errors = stage.process(), Retry(attempts=3, first=200.0), [TimeoutError()]
    app.runtime.roll = lambda: 1.0  # the whole pause, which is longer than the window

    def pay(order: int) -> str:
        if errors and not done:
            raise errors.pop()
        stage.do("pay")
        if errors:
            raise errors.pop()
        return "paid"

    step = style.step(app, pay, repeat=keyed_and_asked(stage, window="1m"), retry=slow)

    def steps(order: int) -> Any:
        return (yield step(order))

    flow = style.flow(app, steps)
    with pytest.raises(Waiting, match="looked for at its destination"):
        flow(1)
    stage.clock.advance(300)
    assert flow(1) == "paid"
    assert stage.effects == {"pay": 1}


def test_a_keyed_step_with_a_look_that_was_cut_off_is_found_after_its_window(stage: Stage, style: Style) -> None:
    with pytest.raises(Died):
        pay_flow(stage, style, keyed_and_asked(stage, window="1m"), [], at=3)(1)
    stage.clock.advance(120)
    assert pay_flow(stage, style, keyed_and_asked(stage, window="1m"), [])(1) == "paid"
    assert stage.effects == {"pay": 1}


def test_a_look_that_is_no_function_is_refused() -> None:
    with pytest.raises(Misuse, match="pass one"):
        keyed(look="find it")  # type: ignore[arg-type]
