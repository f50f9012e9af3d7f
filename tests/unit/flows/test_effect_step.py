"""Functions under @app.effect: described at each call, performed once, looked for when the outcome is unknown."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from msgspec import Struct, field

from tests.unit.flows.stage import Died, Stage
from twiceproof import (
    Absent,
    Happened,
    Misuse,
    NeedsReview,
    NotDone,
    OutcomeUnknown,
    Retry,
    Unknown,
    Waiting,
    check,
    env,
)
from twiceproof.effects import http
from twiceproof.effects.base import Effect, Look, outgoing_headers
from twiceproof.effects.repeat import NEVER, SAFE, Declared


class Bank(Struct):
    """A destination: what it was asked for, by the key that came with it. It may lose its answers."""

    paid: dict[str, int] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    looks: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    answer: Look | None = None


class Receipt(Struct, frozen=True):
    key: str
    amount: int


class Pay(Struct, frozen=True):
    """An effect of these tests: a payment at a `Bank`."""

    bank: Bank
    amount: int
    kind: str = "check"

    @property
    def name(self) -> str:
        return f"PAY bank/{self.amount}"

    @property
    def repeat(self) -> Declared:
        plain = {"safe": SAFE, "never": NEVER}
        return plain.get(self.kind) or Declared(self.kind, self.look, 2.0, 60.0)  # type: ignore[arg-type]

    @property
    def result_type(self) -> Any:
        return Receipt

    def describe(self) -> dict[str, Any]:
        return {"amount": self.amount}

    def perform(self, effect_key: str) -> Receipt:
        self.bank.requests.append(effect_key)
        self.bank.headers.append(dict(outgoing_headers.get()))
        error = self.bank.errors.pop(0) if self.bank.errors else None
        if error is None or isinstance(error, OutcomeUnknown):
            self.bank.paid[effect_key] = self.amount
        if error is not None:
            raise error
        return Receipt(effect_key, self.amount)

    def look(self, effect_key: str) -> Look:
        self.bank.looks.append(effect_key)
        if self.bank.answer is not None:
            return self.bank.answer
        found = self.bank.paid.get(effect_key)
        return Absent() if found is None else Happened(Receipt(effect_key, found))


def pay_flow(stage: Stage, bank: Bank, kind: str = "check", *, is_async: bool = False, **process: Any) -> Any:
    app = stage.process(**process)
    if is_async:

        @app.effect(external="payment:{result.key}")
        async def pay(order: int) -> Effect[Receipt]:
            return Pay(bank, order, kind)

        @app.flow(key="order:{order}", name="sync")
        async def flow(order: int) -> int:
            return (await pay(order)).amount

        return lambda order: asyncio.run(flow(order))

    @app.effect
    def pay(order: int) -> Effect[Receipt]:
        return Pay(bank, order, kind)

    @app.flow(key="order:{order}", name="sync")
    def flow(order: int) -> int:
        return pay(order).amount

    return flow


@pytest.fixture(params=[False, True], ids=["def", "async def"])
def is_async(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_an_effect_is_performed_once_and_replayed(stage: Stage, is_async: bool) -> None:
    bank = Bank()
    flow = pay_flow(stage, bank, is_async=is_async)
    assert [flow(17), flow(17)] == [17, 17]
    assert (len(bank.requests), bank.looks) == (1, [])


@pytest.mark.parametrize("kind", ["safe", "keyed", "check", "never"])
def test_the_effect_decides_how_its_step_may_be_repeated(stage: Stage, kind: str) -> None:
    pay_flow(stage, Bank(), kind)(17)
    assert stage.entries("sync", "order:17")["pay"].note.repeat == kind


def test_an_answer_that_was_lost_is_looked_for_and_adopted(stage: Stage, is_async: bool) -> None:
    bank = Bank(errors=[OutcomeUnknown("no answer")])
    assert pay_flow(stage, bank, is_async=is_async)(17) == 17
    assert (len(bank.requests), bank.looks) == (1, bank.requests)


def test_what_was_refused_is_asked_for_again_under_the_same_key(stage: Stage, is_async: bool) -> None:
    bank = Bank(errors=[NotDone("busy")])
    assert pay_flow(stage, bank, is_async=is_async)(17) == 17
    assert len(bank.requests) == 2
    assert len(set(bank.requests)) == 1


def test_a_refusal_that_no_retry_cures_fails_at_once(stage: Stage, is_async: bool) -> None:
    bank = Bank(errors=[NotDone("card declined", final=True)])
    with pytest.raises(NotDone, match="card declined"):
        pay_flow(stage, bank, is_async=is_async)(17)
    assert (len(bank.requests), bank.paid) == (1, {})


def test_an_unknown_outcome_at_a_destination_that_cannot_tell_is_for_a_person(stage: Stage, is_async: bool) -> None:
    bank = Bank(errors=[OutcomeUnknown("no answer")], answer=Unknown("down"))
    with pytest.raises(NeedsReview, match="cannot tell"):
        pay_flow(stage, bank, is_async=is_async)(17)
    assert len(bank.requests) == 1


def test_a_flow_that_awaits_looks_on_a_thread(stage: Stage) -> None:
    """A look blocks, as the effect does: on the event loop it would hold up all other runs of the worker."""
    places = []

    class Placed(Bank):
        def place(self) -> None:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                places.append("thread")
            else:
                places.append("event loop")

    class PlacedPay(Pay):
        def look(self, effect_key: str) -> Look:
            bank.place()
            return super().look(effect_key)

    bank, app = Placed(errors=[OutcomeUnknown("no answer")]), stage.process()

    @app.effect
    async def pay(order: int) -> Effect[Receipt]:
        return PlacedPay(bank, order)

    @app.flow(key="order:{order}")
    async def sync(order: int) -> int:
        return (await pay(order)).amount

    assert (asyncio.run(sync(17)), places) == (17, ["thread"])


def test_an_attempt_that_outlives_its_time_out_is_not_repeated_beside_it(stage: Stage, is_async: bool) -> None:
    """The thread goes on after the time-out, in an async flow too: that nothing is there yet proves nothing."""
    bank, go_on, ended = Bank(), threading.Event(), threading.Event()

    class SlowPay(Pay):
        @property
        def repeat(self) -> Declared:
            return check(self.look, settling=0)

        def perform(self, effect_key: str) -> Receipt:
            go_on.wait(30)
            try:
                return super().perform(effect_key)
            finally:
                ended.set()

    app, retry = stage.process(), Retry(attempts=3, first=0)

    def pay(order: int) -> Effect[Receipt]:
        return SlowPay(bank, order)

    async def pay_later(order: int) -> Effect[Receipt]:
        return SlowPay(bank, order)

    declare: Any = app.effect(timeout=0.01, retry=retry, name="pay")
    step = declare(pay_later if is_async else pay)

    @app.flow(key="order:{order}")
    def sync(order: int) -> Any:
        return step(order)

    @app.flow(key="order:{order}")
    async def sync_later(order: int) -> Any:
        return await step(order)

    with pytest.raises(NeedsReview, match="its time is over, and it is still at work"):
        asyncio.run(sync_later(17)) if is_async else sync(17)
    go_on.set()
    assert ended.wait(10)
    assert len(bank.requests) == 1


def test_an_effect_whose_caller_was_cancelled_is_not_repeated_beside_itself(stage: Stage) -> None:
    """The caller, such as a web request, is gone; the thread that performs the effect is not."""
    bank, app, go_on, begun = Bank(), stage.process(), threading.Event(), threading.Event()

    class SlowPay(Pay):
        @property
        def repeat(self) -> Declared:
            return check(self.look, settling=0)

        def perform(self, effect_key: str) -> Receipt:
            begun.set()
            go_on.wait(30)
            return super().perform(effect_key)

    @app.effect(retry=Retry(attempts=3, first=0))
    async def pay(order: int) -> Effect[Receipt]:
        return SlowPay(bank, order)

    @app.flow(key="order:{order}")
    async def sync(order: int) -> int:
        return (await pay(order)).amount

    async def cancelled_and_called_again() -> None:
        first = asyncio.create_task(sync(17))
        assert await asyncio.to_thread(begun.wait, 10)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        with pytest.raises(NeedsReview, match="it is still at work"):
            await sync(17)
        go_on.set()

    asyncio.run(cancelled_and_called_again())  # ends when its threads have ended
    assert len(bank.requests) == 1


@pytest.mark.parametrize("repeat", ["never", "safe"])
def test_a_step_that_returns_an_effect_has_not_performed_it(stage: Stage, is_async: bool, repeat: Any) -> None:
    bank, app = Bank(), stage.process()

    def described(order: int) -> Any:
        return Pay(bank, order)

    async def described_later(order: int) -> Any:
        return Pay(bank, order)

    step: Any = app.step(repeat=repeat, name="pay")(described_later if is_async else described)

    @app.flow(key="order:{order}", name="sync")
    def flow(order: int) -> Any:
        return step(order)

    @app.flow(key="order:{order}", name="sync_later")
    async def flow_later(order: int) -> Any:
        return await step(order)

    with pytest.raises(NeedsReview, match=r"pay: it returned an effect \(PAY bank/17\) .* @app.effect"):
        asyncio.run(flow_later(17)) if is_async else flow(17)
    assert bank.requests == []
    run = "sync_later/order:17" if is_async else "sync/order:17"
    assert [step.state for step in app.history(run).steps] == ["unknown"]


def test_a_flow_that_returns_an_effect_is_not_done(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="order:{order}")
    def sync(order: int) -> Any:
        return Pay(Bank(), order)

    with pytest.raises(NeedsReview, match=r"it returned an effect \(PAY bank/17\) .* perform it with app.effects"):
        sync(17)


def test_a_guarded_function_that_returns_an_effect_is_not_done(stage: Stage) -> None:
    app = stage.process()

    @app.once(key="order:{order}")
    def pay(order: int) -> Any:
        return Pay(Bank(), order)

    with pytest.raises(NeedsReview, match=r"it returned an effect \(PAY bank/17\)"):
        pay(17)
    with pytest.raises(NeedsReview):
        pay(17)


NOWHERE = "http://127.0.0.1:9/charges"


def unavailable() -> str:
    raise ConnectionResetError("the token service hung up")


def unsendable(cause: str) -> Any:
    """A POST without a key or a look, which fails before its first byte is sent."""
    if cause == "secret":
        return http.post(NOWHERE, json={}, auth=env("SECRET_OF_NOBODY"))
    return http.post(NOWHERE, json={"order": object()})


@pytest.mark.parametrize(
    ("cause", "says"), [("secret", "SECRET_OF_NOBODY is not set"), ("body", "objects of type object is unsupported")]
)
def test_an_effect_that_cannot_be_sent_was_certainly_not_done(stage: Stage, cause: str, says: str) -> None:
    """It is declared never: taken for an unknown outcome, a person would look for what was never sent."""
    app = stage.process()

    @app.effect
    def charge(order: int) -> Effect[Any]:
        return unsendable(cause)

    @app.flow(key="order:{order}")
    def sync(order: int) -> Any:
        return charge(order)

    with pytest.raises(NotDone, match=f"POST 127.0.0.1:9/charges was not sent: .*{says}"):
        sync(1)


def test_a_missing_secret_undoes_nothing_and_the_run_goes_on_after_a_fix(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = stage.process()

    def unbook(result: str) -> None:
        stage.do("unbook")

    @app.step(repeat="safe", undo=unbook)
    def book() -> str:
        stage.do("book")
        return "room 12"

    @app.effect
    def charge(order: int) -> Effect[Any]:
        return unsendable("secret")

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> Any:
        book()
        return charge(order)

    with pytest.raises(NeedsReview, match=r"its own code broke off with .*SECRET_OF_NOBODY is not set"):
        sync(1)
    assert stage.effects == {"book": 1}
    monkeypatch.setenv("SECRET_OF_NOBODY", "s3cret")
    app.retry_run("sync/order:1")
    app.worker().run(until_idle=True)
    (_, charged) = app.history("sync/order:1").steps
    assert (charged.state, (charged.fault or {})["type"]) == (
        "retry",
        "NotDone",
    )  # sent now, and refused
    assert stage.effects == {"book": 1}


def test_a_token_that_cannot_be_had_is_a_clean_failure(stage: Stage) -> None:
    """The token service gave no answer; the effect itself was not sent, and is tried again."""
    app = stage.process()

    @app.effect(retry=Retry(attempts=2, first=0))
    def charge(order: int) -> Effect[Any]:
        return http.post(NOWHERE, json={}, auth=unavailable)

    @app.flow(key="order:{order}")
    def sync(order: int) -> Any:
        return charge(order)

    with pytest.raises(NotDone, match="was not sent: ConnectionResetError: the token service hung up"):
        sync(1)
    assert app.history("sync/order:1").steps[0].starts == 2


def test_an_effect_that_was_not_awaited_is_named_as_it_was_written(stage: Stage) -> None:
    app = stage.process()

    @app.flow(key="export:{order}")
    async def export(order: int) -> None:
        app.effects.files.append("/nowhere/orders.jsonl", {"order": order})

    with pytest.raises(NeedsReview, match=r"^export for 'export:1' waits for a person: app.effects \(.*never awaited"):
        asyncio.run(export(1))


def test_a_block_without_such_a_function_names_those_that_it_has(stage: Stage) -> None:
    with pytest.raises(AttributeError, match=r"app\.effects\.files has no 'remove'; there are append, create, write"):
        stage.process().effects.files.remove("a.txt")


def test_several_records_for_one_effect_are_a_review_and_one_finding(stage: Stage, is_async: bool) -> None:
    bank = Bank(errors=[OutcomeUnknown("no answer")], answer=Unknown.several(["pay_1", "pay_2"], "the bank"))
    flow = pay_flow(stage, bank, is_async=is_async)
    with pytest.raises(NeedsReview, match="2 found in the bank: pay_1, pay_2"):
        flow(17)
    app = stage.process()
    (found,) = app.findings()
    assert (found.reconciliation, found.check, found.refs) == ("effect-looks", "several-found", ("pay_1", "pay_2"))
    assert "is 2 times at its destination: pay_1, pay_2" in found.summary and found.next
    app.resolve_finding(found.id, by="ada")
    assert app.findings() == []


def test_one_record_that_cannot_be_told_is_no_finding(stage: Stage, is_async: bool) -> None:
    bank = Bank(errors=[OutcomeUnknown("no answer")], answer=Unknown("down"))
    with pytest.raises(NeedsReview):
        pay_flow(stage, bank, is_async=is_async)(17)
    assert stage.process().findings() == []


@pytest.mark.parametrize("landed", [True, False])
def test_a_process_killed_between_effect_and_record_does_not_repeat_it(stage: Stage, landed: bool) -> None:
    bank = Bank()
    with pytest.raises(Died):
        pay_flow(stage, bank, at=3, landed=landed)(17)
    stage.lapse()
    stage.clock.advance(10)
    assert pay_flow(stage, bank)(17) == 17
    assert len(bank.requests) == 1


@pytest.mark.parametrize("amount", [1, 2])
def test_a_replay_that_describes_another_effect_stops_for_review(stage: Stage, amount: int) -> None:
    bank, app, amounts = Bank(), stage.process(), [1]

    @app.effect
    def pay(order: int) -> Effect[Receipt]:
        return Pay(bank, amounts[0])

    @app.flow(key="order:{order}", name="sync")
    def flow(order: int) -> int:
        paid = pay(order)
        app.sleep("1h")
        return paid.amount

    with pytest.raises(Waiting):
        flow(17)
    stage.clock.advance(3_601)
    amounts[0] = amount
    if amount == 1:
        assert flow(17) == 1
    else:
        with pytest.raises(NeedsReview, match="called with another amount"):
            flow(17)
    assert len(bank.requests) == 1


def test_outside_of_a_flow_it_is_performed_as_it_is(stage: Stage) -> None:
    bank, app = Bank(), stage.process()

    @app.effect
    def pay(order: int) -> Effect[Receipt]:
        return Pay(bank, order)

    assert [pay(1).amount, pay(1).amount] == [1, 1]
    assert len(set(bank.requests)) == 2  # no run remembers anything: each call has a key of its own


def test_an_undo_may_be_an_effect(stage: Stage) -> None:
    bank, back, app = Bank(), Bank(), stage.process()

    @app.effect
    def refund(result: Receipt) -> Effect[Receipt]:
        return Pay(back, -result.amount)

    @app.effect(undo=refund)
    def pay(order: int) -> Effect[Receipt]:
        return Pay(bank, order)

    @app.flow(key="order:{order}", name="sync")
    def flow(order: int) -> None:
        pay(order)
        raise RuntimeError("no stock")

    with pytest.raises(RuntimeError, match="no stock"):
        flow(17)
    assert list(back.paid.values()) == [-17]
    assert stage.entries("sync", "order:17")["undo:pay"].state == "done"


def test_an_effect_carries_the_correlation_id(stage: Stage, is_async: bool) -> None:
    bank = Bank()
    flow = pay_flow(stage, bank, is_async=is_async)
    with stage.apps[0].correlate("trace-1"):
        flow(17)
    assert bank.headers == [{"correlation-id": "trace-1"}]


def test_a_correlation_id_outside_ascii_is_sent_as_headers_take_it(stage: Stage) -> None:
    bank = Bank()
    flow = pay_flow(stage, bank)
    with stage.apps[0].correlate("bestellung-№5"):
        flow(17)
    assert bank.headers == [{"correlation-id": "bestellung-%E2%84%965"}]


def test_an_effect_without_a_name_is_a_step_named_after_what_it_does(stage: Stage) -> None:
    from twiceproof.flows.effect_step import perform_here

    bank, app = Bank(), stage.process()

    @app.flow(key="order:{order}", name="sync")
    def flow(order: int) -> int:
        first = perform_here(app.runtime, Pay(bank, order))
        return first.amount + perform_here(app.runtime, Pay(bank, 1)).amount

    assert [flow(17), flow(17)] == [18, 18]
    assert len(bank.requests) == 2
    assert set(stage.entries("sync", "order:17")) == {"PAY[bank/17]", "PAY[bank/1]"}


def test_an_effect_without_a_name_is_awaited_in_an_async_flow(stage: Stage) -> None:
    from twiceproof.flows.effect_step import perform_here

    bank, app = Bank(), stage.process()

    @app.flow(key="order:{order}", name="sync")
    async def flow(order: int) -> int:
        return (await perform_here(app.runtime, Pay(bank, order))).amount

    assert [asyncio.run(flow(17)), asyncio.run(flow(17))] == [17, 17]
    assert len(bank.requests) == 1


def test_what_is_no_effect_is_refused(stage: Stage) -> None:
    app = stage.process()

    @app.effect
    def pay(order: int) -> Any:
        return {"amount": order}

    @app.effect
    async def slow(order: int) -> Any:
        await asyncio.sleep(0)

    with pytest.raises(Misuse, match="returned dict, and not an effect"):
        pay(17)
    with pytest.raises(Misuse, match="awaits something"):
        asyncio.run(slow(17))  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="there are http, sql"):
        app.effects.ftp  # noqa: B018
