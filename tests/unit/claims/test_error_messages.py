"""What users of comparable systems ran into, each as a test of ours. The numbers are the public threads'."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from twiceproof import (
    App,
    ClaimLost,
    InProgress,
    Misuse,
    NeedsReview,
    NotDone,
    PayloadMismatch,
    PriorFailure,
    ResultTypeWarning,
)
from twiceproof.claims.claim import Busy, Done, Held, Settlement, address_of, claim_of
from twiceproof.claims.queries import evidence_of
from twiceproof.claims.results import Packed
from twiceproof.claims.states import BeginClaim, decide
from twiceproof.operations import block

AT = address_of("default", "pay", "order:1")


def killed(app: App, pay: Any, *args: Any) -> Held:
    """A holder that is never heard of again."""
    held = block(app.claims.take(pay.once.request(args or (1,), {})))
    assert isinstance(held, Held)
    return held


def counting(app: App, **options: Any) -> Any:
    runs: list[int] = []

    @app.once(**{"key": "order:{order}", "name": "pay", **options})
    def pay(order: int) -> int:
        runs.append(order)
        return len(runs)

    pay.runs = runs  # type: ignore[attr-defined]
    return pay


# -- idempotency layers --------------------------------------------------------------------------


def test_a_killed_holder_does_not_block_its_key_for_ever(app: App, clock: Any) -> None:
    """A killed function left its key "in progress", and every retry failed. (powertools-python 1038, 738)"""
    pay = counting(app, repeat="safe")
    killed(app, pay)
    with pytest.raises(InProgress):
        pay(1)
    clock.advance(30)
    assert pay(1) == 1


@pytest.mark.parametrize("lease", [0, -1, "0s", 0.0, None, True, "forever"])
def test_a_lease_of_nothing_is_refused_and_not_read_as_unlimited(memory: App, lease: Any) -> None:
    """A remaining time of zero was taken for "unknown", and no lease was set. (powertools-python 4759)"""
    with pytest.raises(Misuse, match="lease="):
        counting(memory, lease=lease)
    with pytest.raises(Misuse, match="lease="):
        memory.claim("pay", "order:1", lease=lease)


def test_a_lapsed_lease_is_no_licence_to_pay_again(app: App, clock: Any) -> None:
    """After a time-out the payout must not run again; the window is the user's to choose. (powertools-python 8049)"""
    pay = counting(app, lease="15m")
    killed(app, pay)
    clock.advance(899)
    with pytest.raises(InProgress):
        pay(1)
    clock.advance(1)
    with pytest.raises(NeedsReview):
        pay(1)
    assert pay.runs == []


def test_a_claim_made_with_default_settings_is_never_an_orphan_while_it_lives(app: App) -> None:
    """Without an explicit expiry a live record was taken for an orphan, and the work ran twice. (…-python 8386)"""
    pay = counting(app, repeat="safe")
    killed(app, pay)
    assert app.store.read(AT).block().record.lease_until is not None
    with pytest.raises(InProgress):
        pay(1)


def test_a_take_over_decided_on_an_old_read_does_not_land(desk: Any) -> None:
    """The take-over trusted a stale read and overwrote a live or finished record. (powertools-typescript 5714)"""
    held, claim = desk.held("ann")
    desk.clock.advance(31)
    stale = desk.record()
    move = decide(desk.ask("bob", repeat="safe"), stale, desk.clock.now())
    assert isinstance(move, BeginClaim)
    for changed in (desk.claims.renew(held), desk.claims.complete(held, claim, Packed())):
        desk.run(changed)
        before = desk.record()
        assert type(desk.store.write(move.write).block()).__name__ == "Conflict"
        assert desk.record() == before


def test_an_identical_retry_after_completion_is_no_mismatch(app: App, clock: Any) -> None:
    """Completion dropped the payload's hash, so the same request was refused. (powertools-typescript 5705)"""
    pay = counting(app, keep_result="1h")
    assert [pay(1), pay(1)] == [1, 1]
    record = app.store.read(AT).block().record
    assert claim_of(record).fingerprint == pay.once.request((1,), {}).fingerprint


def test_the_fingerprint_outlives_every_way_to_end(desk: Any) -> None:
    """The same, for failures, reviews and a person's word. (powertools-typescript 5705)"""
    held, claim = desk.held(fingerprint="1:same")
    from twiceproof.claims.claim import Fault

    desk.run(desk.claims.park(held, claim, Fault("TimeoutError"), "no answer"))
    assert claim_of(desk.record()).fingerprint == "1:same"
    desk.run(desk.claims.settle(AT, Settlement("did-not-happen", "eve", 0.0)))
    assert claim_of(desk.record()).fingerprint == "1:same"


def test_a_refused_duplicate_does_not_release_the_winners_claim(app: App) -> None:
    """The loser's error hook deleted the winner's lock. (powertools-typescript 5675, 5676)"""
    began, go = threading.Event(), threading.Event()

    @app.once(key="order:{order}", on_failure="release")
    def pay(order: int) -> str:
        began.set()
        go.wait(10)
        return "paid"

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(pay, 1)
        began.wait(10)
        for _ in range(3):
            with pytest.raises(InProgress):
                pay(1)
        assert isinstance(pay.look(1), Busy)
        go.set()
        assert first.result(10) == "paid"


def test_a_failure_between_the_effect_and_its_record_has_a_state_of_its_own(meddled: Any, clock: Any) -> None:
    """It failed after the side effect and before the save, and ran again. (powertools-python 801)"""
    app, engine = meddled
    effects: list[int] = []

    @app.once(key="order:{order}")
    def pay(order: int) -> None:
        effects.append(order)
        for _ in range(1_000):
            engine.refuse_connection()

    with pytest.raises(Exception, match="does not answer"):
        pay(1)
    engine._faults.clear()
    clock.advance(60)
    with pytest.raises(NeedsReview):
        pay(1)
    assert effects == [1]


def test_async_functions_are_guarded_like_any_other(app: App) -> None:
    """Asked for and turned down. (powertools-python 4483)"""
    runs: list[int] = []

    @app.once(key="order:{order}")
    async def pay(order: int) -> int:
        runs.append(order)
        await asyncio.sleep(0)
        return order

    assert (asyncio.run(pay(1)), asyncio.run(pay(1)), runs) == (1, 1, [1])


def test_two_operations_on_one_store_keep_their_own_settings(app: App, clock: Any) -> None:
    """A shared persistence object silently kept the first one's expiry and key. (powertools-typescript 5409, 5419)"""
    short = counting(app, name="short", keep="1h")
    long = counting(app, name="long", keep="2h", key="other:{order}")
    short(1), long(1)
    clock.advance(3_600)
    assert (short(1), long(1)) == (2, 1)
    assert (short.key(1), long.key(1)) == ("order:1", "other:1")


def test_a_mismatch_says_what_is_stored(app: App) -> None:
    """On a mismatch, show me the stored record. (powertools-typescript 2048)"""

    @app.once(key="order:{order}")
    def pay(order: int, amount: int) -> None: ...

    pay(1, 1)
    with pytest.raises(PayloadMismatch) as told:
        pay(1, 2)
    stored = app.store.read(AT).block().record
    assert (told.value.found, told.value.run) == (claim_of(stored).fingerprint, claim_of(stored).run)
    assert told.value.state == "done"


def test_deduplication_and_concurrency_control_do_not_end_after_five_minutes(app: App, clock: Any) -> None:
    """A queue's five-minute window is too short, and says nothing about concurrency. (powertools-python 2023)"""
    pay = counting(app)
    pay(1)
    clock.advance(29 * 86_400)
    assert (pay(1), pay.runs) == (1, [1])


def test_the_same_execution_finds_itself_again_after_a_replay(app: App) -> None:
    """A durable function replays its handler, and found itself "in progress" for ever. (powertools-python 7762)"""
    first = app.claim("pay", "order:1", owner="execution-7")
    first.__enter__()
    with app.claim("pay", "order:1", owner="execution-7") as replayed:
        replayed.result = "paid"
    with pytest.raises(ClaimLost):
        first.__exit__(None, None, None)


def test_a_claim_and_its_lease_are_one_write(desk: Any) -> None:
    """The key was set first and its expiry second: a crash between them left it for ever. (powertools-python 1181)"""
    move = decide(desk.ask(), None, 0.0)
    assert isinstance(move, BeginClaim)
    assert move.write.lease == 30.0
    desk.take()
    assert desk.engine.groups == [1]


def test_one_can_ask_when_a_record_expires(app: App, clock: Any) -> None:
    """Expose when the record expires. (powertools-java 1725)"""
    finite, forever = counting(app, keep="1h"), counting(app, name="ever", keep="forever")
    finite(1), forever(1)
    assert finite.look(1).kept_until == clock.now() + 3_600
    assert forever.look(1).kept_until is None


def test_a_result_too_large_to_keep_does_not_fail_the_call_after_its_effect(app: App) -> None:
    """Over 400 KB the call failed after the side effect, and a retry ran it again. (docs; …-typescript 2944)"""
    runs: list[int] = []

    @app.once(key="order:{order}", large="digest")
    def pay(order: int) -> str:
        runs.append(order)
        return "x" * 500_000

    with pytest.warns(ResultTypeWarning):
        assert len(pay(1)) == 500_000
    assert isinstance(pay.look(1), Done)
    with pytest.raises(Exception, match="was done, but its result is not kept"):
        pay(1)
    assert runs == [1]


# -- workflow engines ----------------------------------------------------------------------------


def test_fifty_callers_at_once_run_the_body_once(app: App) -> None:
    """Only calls one after the other were deduplicated; those at once all ran the body. (dbos-transact-py 544)"""
    pay, barrier = counting(app, on_duplicate="wait"), threading.Barrier(50, timeout=10)

    def call() -> int:
        barrier.wait()
        return pay(1)

    with ThreadPoolExecutor(50) as pool:
        assert {future.result() for future in [pool.submit(call) for _ in range(50)]} == {1}
    assert pay.runs == [1]


def test_two_apps_on_one_file_run_the_body_once(tmp_path: Any) -> None:
    """Two runners on one SQLite file ran the same work. (dbos-transact-py 541)"""
    url, barrier, runs = f"sqlite:///{tmp_path}/two.db", threading.Barrier(2, timeout=10), []

    def runner(app: App) -> list[int]:
        @app.once(key="order:{order}", on_duplicate="wait")
        def pay(order: int) -> int:
            runs.append(order)
            return order

        barrier.wait()
        return [pay(order) for order in range(30)]

    with App(url) as one, App(url) as two, ThreadPoolExecutor(2) as pool:
        answers = [future.result() for future in [pool.submit(runner, app) for app in (one, two)]]
    assert answers == [list(range(30))] * 2
    assert sorted(runs) == list(range(30))


def test_a_zombie_is_told_and_does_not_go_on_as_if_it_had_won(app: App, clock: Any) -> None:
    """The loser of a race went on and ran the later steps. (dbos-transact-py 818)"""
    later: list[str] = []
    runs: list[int] = []

    @app.once(key="order:{order}", repeat="safe")
    def pay(order: int) -> str:
        runs.append(order)
        if len(runs) == 1:
            clock.advance(31)
            with ThreadPoolExecutor(1) as pool:
                pool.submit(pay, order).result()
        return "paid"

    with pytest.raises(ClaimLost):
        later.append(pay(1))
    assert later == []


@pytest.mark.parametrize("ago", [0.0, 0.001, 29.999])
def test_a_claim_taken_this_very_moment_is_not_recovered_by_anyone(app: App, clock: Any, ago: float) -> None:
    """Start-up recovery adopted a run begun in the same millisecond. (dbos-transact-java 491, 493)"""
    pay = counting(app, repeat="safe")
    killed(app, pay)
    clock.advance(ago)
    with pytest.raises(InProgress):
        pay(1)
    assert pay.runs == []


def test_one_key_in_two_operations_is_two_intents(app: App) -> None:
    """The same id used for another function broke the first one. (dbos-transact-ts 725)"""
    pay, ship = counting(app), counting(app, name="ship")
    assert (pay(1), ship(1), pay.runs, ship.runs) == (1, 1, [1], [1])


def test_several_processes_worth_of_apps_open_a_new_file_at_once(tmp_path: Any) -> None:
    """A migration race killed all processes but one; "locked" became a final error. (code_puppy 490, …-py 761)"""
    barrier = threading.Barrier(8, timeout=10)

    def start(order: int) -> int:
        barrier.wait()
        with App(f"sqlite:///{tmp_path}/new.db") as app:
            return counting(app)(order)

    with ThreadPoolExecutor(8) as pool:
        assert [future.result() for future in [pool.submit(start, n) for n in range(8)]] == [1] * 8


def test_whether_a_failure_holds_its_key_is_said_and_done(app: App) -> None:
    """Failed runs held the key, and dead ones were returned as cached. (triggerdotdev 2376, 4819)"""

    def failing(name: str, **options: Any) -> Any:
        runs: list[int] = []

        @app.once(key="order:{order}", name=name, **options)
        def pay(order: int) -> int:
            runs.append(order)
            if len(runs) == 1:
                raise NotDone("no", final=True)
            return len(runs)

        with pytest.raises(NotDone):
            pay(1)
        return pay

    assert failing("released", on_failure="release")(1) == 2
    with pytest.raises(PriorFailure):
        failing("kept")(1)


def test_a_key_is_held_while_active_however_long_and_let_go_at_its_end(app: App, clock: Any) -> None:
    """A fixed time is not what was asked: hold it while active, the lease is only a safety net. (hatchet 2950)"""
    seen: list[Any] = []

    @app.once(key="order:{order}", lease="30s", on_failure="release")
    def pay(order: int) -> None:
        for _ in range(100):
            clock.advance(10)
            app._heartbeat.beat()
        with ThreadPoolExecutor(1) as pool:
            seen.append(pool.submit(pay.look, order).result())
        raise NotDone("the end")

    with pytest.raises(NotDone):
        pay(1)
    assert isinstance(seen[0], Busy) and seen[0].retry_after > 0
    assert pay.look(1) is None


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("on_duplicate", "replace"),
        ("on_failure", "retry"),
        ("repeat", "keyed"),
        ("large", "inline"),
        ("keep", "30"),
        ("keep_result", 0),
        ("keep_failed", "soon"),
        ("ignore", ("nothing",)),
        ("stable", "id"),
    ],
)
def test_an_option_that_is_not_enforced_is_not_accepted(memory: App, option: str, value: Any) -> None:
    """The key was accepted and ignored, for years. (conductor-oss 1527, 622)"""
    with pytest.raises(Misuse):
        counting(memory, **{option: value})


def test_an_unknown_store_option_is_not_accepted(tmp_path: Any) -> None:
    """The same, for the store's own options. (conductor-oss 1527)"""
    with pytest.raises(Misuse, match="is not known"):
        App(f"sqlite:///{tmp_path}/x.db?durabilty=power")


def test_a_late_result_of_a_parked_claim_is_kept_as_evidence(app: App, clock: Any) -> None:
    """The worker finished after its time-out; its report was refused and nobody knew what happened. (conductor 322)"""

    @app.once(key="order:{order}")
    def pay(order: int) -> str:
        clock.advance(31)
        with ThreadPoolExecutor(1) as pool, pytest.raises(NeedsReview):
            pool.submit(pay, order).result()
        return "receipt 5"

    with pytest.raises(ClaimLost, match="evidence"):
        pay(1)
    with pytest.raises(NeedsReview):
        pay(1)
    (report,) = block(evidence_of(app.store, AT.space))
    assert bytes(report.result) == b'"receipt 5"'


def test_starts_are_counted_and_not_only_failures(app: App, clock: Any) -> None:
    """A step that was killed each time was retried for ever, as attempt one. (vercel/workflow 3035, 3553)"""
    pay = counting(app, repeat="safe")
    attempts = []
    for _ in range(4):
        attempts.append(killed(app, pay).attempt)
        clock.advance(31)
    assert attempts == [1, 2, 3, 4]


def test_an_orphan_is_never_taken_for_a_failure(app: App, clock: Any) -> None:
    """An orphaned "pending" must never be treated as failed: tools paid and mailed twice. (crewAI 5802)"""
    pay = counting(app)
    killed(app, pay)
    clock.advance(31)
    for call in (pay, pay.retry):
        with pytest.raises(NeedsReview):
            call(1)
    assert pay.runs == []


def test_what_surely_did_not_happen_is_tried_again_without_a_person(app: App) -> None:
    """The twin of the one above: a clean refusal needs nobody. (crewAI 5802)"""
    runs: list[int] = []

    @app.once(key="order:{order}")
    def pay(order: int) -> int:
        runs.append(order)
        if len(runs) == 1:
            raise NotDone("card refused")
        return len(runs)

    with pytest.raises(NotDone):
        pay(1)
    assert pay(1) == 2
