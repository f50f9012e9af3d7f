"""`app.remote`: work elsewhere is started once, whatever crashes, and waited for by its callback."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.flows.stage import Died, Stage, Style
from tests.unit.flows.waits import park, process, token_of, work
from twiceproof import App, Misuse, NeedsReview, NotDone, StepFailed, Waiting, WaitTimedOut
from twiceproof.flows.engine.step_identity import effect_key
from twiceproof.flows.history.review import ReviewDecision, settle_run
from twiceproof.operations import block


class Machine:
    """Elsewhere: jobs that are started, and what they were told."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.urls: list[str] = []
        self.keys: list[str] = []
        self.error: BaseException | None = None
        self.refuses: BaseException | None = None

    def start(self, url: str, effect_key: str) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.stage.do("start")
        self.urls.append(url)
        self.keys.append(effect_key)
        if self.error is not None:
            raise self.error

    def call_back(self, app: App, payload: Any = "result") -> Any:
        return app.deliver(token_of(self.urls[-1]), payload)


@pytest.fixture
def machine(stage: Stage) -> Machine:
    return Machine(stage)


def sending(app: App, machine: Machine, style: Style | None = None, start: Any = None, **options: Any) -> Any:
    options = {"timeout": "2h", **options}

    def steps(order: int) -> Any:
        return (yield app.remote(start=start or machine.start, callback="job", **options))

    return (style or Style("def")).flow(app, steps)


def test_a_job_is_started_once_with_its_url_and_key_and_its_callback_is_the_result(
    stage: Stage, machine: Machine, style: Style
) -> None:
    app = process(stage)
    sync = sending(app, machine, style)
    park(sync)
    park(sync)
    assert machine.keys == [effect_key("default/sync/order:1", "start:job")]
    assert machine.call_back(app, {"rows": 7}).first
    assert sync(1) == {"rows": 7}
    assert stage.effects == {"start": 1}


def test_an_async_start_is_awaited_and_a_plain_one_goes_to_a_thread(stage: Stage) -> None:
    started: list[str] = []

    async def start(url: str) -> None:
        started.append(url)

    for order, given in enumerate((start, started.append)):
        app = process(stage)

        def steps(order: int, app: App = app, given: Any = given) -> Any:
            return (yield app.remote(start=given if given is start else lambda url: given(url), callback="job"))

        sync = Style("async def").flow(app, steps)
        park(sync, order)
        app.deliver(token_of(started[-1]), order)
        assert sync(order) == order
    assert len(started) == 2


def test_an_async_start_in_a_plain_flow_is_refused(stage: Stage, machine: Machine) -> None:
    async def start(url: str) -> None: ...

    with pytest.raises(Misuse, match="belongs to an `async def` flow"):
        sending(process(stage), machine, start=start)(1)


# -- clean refusals --------------------------------------------------------------------------------


def test_a_start_that_was_refused_is_tried_again(stage: Stage, machine: Machine) -> None:
    app = process(stage)
    sync = sending(app, machine)
    machine.refuses = NotDone("busy", retry_after=60)
    park(sync)
    machine.refuses = None
    stage.clock.advance(61)
    park(sync)
    machine.call_back(app)
    assert sync(1) == "result"
    assert stage.effects == {"start": 1}


def test_a_start_that_fails_for_good_is_told_to_the_flow(stage: Stage, machine: Machine) -> None:
    app = process(stage)

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        try:
            return str(app.remote(start=machine.start, callback="job"))
        except StepFailed as error:
            return error.fault.type

    machine.refuses = NotDone("no such job", final=True)
    assert sync(1) == "NotDone"


def test_a_flow_that_was_told_of_a_failed_start_is_told_so_again_whatever_arrives(
    stage: Stage, machine: Machine
) -> None:
    app = process(stage)

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        try:
            return str(app.remote(start=machine.start, callback="job"))
        except StepFailed:
            app.sleep("1h")
            return "another way"

    machine.error = NotDone("said so after it was started", final=True)
    park(sync)
    assert machine.call_back(app).first
    stage.clock.advance(3_601)
    assert sync(1) == "another way"


# -- unknown starts --------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["callback", "silence"])
@pytest.mark.parametrize(
    "crash", ["no answer", "a bug after it was started", "killed before the record", "killed after the intent"]
)
def test_nobody_knows_whether_it_was_started(
    stage: Stage, machine: Machine, style: Style, crash: str, answer: str
) -> None:
    """It is not started again. A callback proves that it was; only silence until the time is over asks a person."""
    first = process(stage)
    if crash in ("no answer", "a bug after it was started"):
        machine.error = TimeoutError(crash) if crash == "no answer" else ValueError(crash)
        park(sending(first, machine, style))
    else:
        real = machine.start

        def start(url: str, effect_key: str) -> None:
            if crash == "killed before the record":
                real(url, effect_key)
            else:
                machine.urls.append(url)
            first.engine.dead = True  # type: ignore[attr-defined]

        with pytest.raises(Died):
            sending(first, machine, style, start)(1)
        stage.lapse()
    before = dict(stage.effects)
    app = process(stage)
    sync = sending(app, machine, style)
    park(sync)
    assert stage.record("sync", "order:1").state == "waiting"
    if answer == "callback":
        assert machine.call_back(app).first
        assert sync(1) == "result"
        assert stage.entries("sync", "order:1")["start:job"].state == "done"
    else:
        stage.clock.advance(7_201)
        with pytest.raises(NeedsReview, match="it is not known whether it was started, and no callback came"):
            sync(1)
        assert stage.entries("sync", "order:1")["start:job"].state == "unknown"
    assert stage.effects == before


@pytest.mark.parametrize("at", range(1, 8))
@pytest.mark.parametrize("landed", [False, True])
def test_killed_at_any_commit_it_is_never_started_twice(stage: Stage, machine: Machine, at: int, landed: bool) -> None:
    with pytest.raises((Died, Waiting)):
        sending(process(stage, at, landed=landed), machine)(1)
    stage.lapse()
    app = process(stage)
    sync = sending(app, machine)
    park(sync)
    if machine.urls:
        assert len(machine.urls) == 1
        machine.call_back(app)
        assert sync(1) == "result"
    else:  # the intent was written, and nothing more: nobody can say so
        stage.clock.advance(7_201)
        with pytest.raises(NeedsReview):
            sync(1)


def test_a_callback_that_comes_while_a_person_is_asked_is_kept(stage: Stage, machine: Machine) -> None:
    app = process(stage)
    machine.error = TimeoutError("no answer")
    sync = sending(app, machine)
    park(sync)
    stage.clock.advance(7_201)
    with pytest.raises(NeedsReview):
        sync(1)
    assert machine.call_back(app).first
    settle_as_not_done(stage, app)
    work(app)
    assert sync(1) == "result"
    assert stage.effects == {"start": 1}


def test_settled_as_not_started_it_is_started_again_and_its_time_runs_anew(stage: Stage, machine: Machine) -> None:
    app = process(stage)
    machine.error = TimeoutError("no answer")
    sync = sending(app, machine)
    park(sync)
    stage.clock.advance(7_201)
    with pytest.raises(NeedsReview):
        sync(1)
    settle_as_not_done(stage, app)
    machine.error = None
    work(app)
    assert stage.effects == {"start": 2}
    stage.clock.advance(7_000)
    machine.call_back(app)
    assert sync(1) == "result"


def settle_as_not_done(stage: Stage, app: App) -> None:
    block(settle_run(app.store, stage.record("sync", "order:1").at, ReviewDecision("did-not-happen", "ann")))


def test_a_job_that_was_surely_started_and_stays_silent_times_out_in_the_body(stage: Stage, machine: Machine) -> None:
    app = process(stage)
    sync = sending(app, machine)
    park(sync)
    stage.clock.advance(7_201)
    with pytest.raises(WaitTimedOut, match="was started, and nothing came back in time"):
        sync(1)
    assert machine.call_back(app).state == "timeout"


def test_a_callback_that_comes_before_its_start_is_recorded_counts(stage: Stage, machine: Machine) -> None:
    app, other = process(stage), process(stage)

    def start(url: str) -> None:
        stage.do("start")
        other.deliver(token_of(url), "quick")

    assert sending(app, machine, start=start)(1) == "quick"
    assert stage.effects == {"start": 1}
