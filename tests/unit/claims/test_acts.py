"""Acts: what a person did is on record with its effect, in the same commit, and without it not."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from twiceproof import App, NotDone
from twiceproof.claims.acts import ACT_KIND, ActNote, act_beside, act_write, acts_of, list_acts
from twiceproof.claims.claim import CLAIM, Settlement, address_of
from twiceproof.claims.manager import ClaimManager
from twiceproof.claims.retention import sweep
from twiceproof.errors import Misuse, NeedsReview
from twiceproof.flows.engine.compensation import cancel
from twiceproof.operations import block
from twiceproof.prove.clocks import ShiftedClock
from twiceproof.records import Address, Insert, Record, Written
from twiceproof.server.tokens import Scope, create_token, revoke_token


@pytest.fixture(params=["memory://", "sqlite:///"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    url = request.param if request.param.startswith("memory") else f"sqlite:///{tmp_path}/ledger.db"
    with App(url) as made:

        @made.step(repeat="never")
        def charge(n: int) -> int:
            if n < 10:
                raise TimeoutError("no answer")
            if n < 20:
                raise NotDone("closed", final=True)
            return n

        @made.flow(key="order:{n}")
        def pay(n: int) -> int:
            return charge(n)

        @made.once(key="{n}")
        def ship(n: int) -> None:
            raise TimeoutError("no answer")

        made.pay, made.ship = pay, ship  # type: ignore[attr-defined]
        yield made


def started(app: Any, n: int) -> str:
    run: str = app.pay.start(n).id
    app.worker().run(until_idle=True)
    return run


def told(app: Any, **which: str) -> list[tuple[str, ...]]:
    return [(act.verb, act.by, act.operation, act.key, act.said, act.step) for act in app.acts(**which)]


def test_a_settlement_is_on_record(app: Any) -> None:
    app.settle_run(started(app, 1), "happened", by="ann", result=17, note="looked it up")
    assert told(app) == [("settle", "ann", "pay", "order:1", "happened", "charge")]
    assert app.acts()[0].note == "looked it up"
    assert app.acts()[0].at == pytest.approx(app.runtime.clock.now(), abs=20)


def test_a_settlement_that_is_refused_is_not(app: Any) -> None:
    run = started(app, 1)
    with pytest.raises(Misuse):
        app.settle_run(run, "happened", by="ann")
    assert told(app) == []


def test_a_retry_says_who_asked_for_it(app: Any) -> None:
    app.retry_run(started(app, 11), by="bob")
    assert told(app) == [("retry", "bob", "pay", "order:11", "", "")]


def test_what_nobody_asked_for_is_nobodys_act(app: Any) -> None:
    app.retry_run(started(app, 11))
    assert told(app) == []


def test_a_cancellation_and_a_fork_are_on_record(app: Any) -> None:
    app.fork_run(started(app, 11), key="order:31", by="ann")
    block(cancel(app.store, address_of("default", "pay", "order:31", "run"), "bob"))
    assert told(app) == [
        ("cancel", "bob", "pay", "order:31", "", ""),
        ("fork", "ann", "pay", "order:31", "from order:11", ""),
    ]


def test_a_decision_about_a_claim_and_its_release_outlive_it(app: Any) -> None:
    at = address_of("default", "ship", "7")
    with pytest.raises((TimeoutError, NeedsReview)):
        app.ship(7)
    claims = ClaimManager(app.store)
    block(claims.settle(at, Settlement("happened", "ann", 0.0, "it is there")))
    block(claims.free(at, by="bob"))
    assert app.store.read(at).block().record is None
    assert [(verb, operation, key) for verb, _, operation, key, *_ in told(app)] == [
        ("release", "ship", "7"),
        ("settle", "ship", "7"),
    ]
    assert [act.by for act in block(acts_of(app.store, at.space))] == ["ann", "bob"]


def test_a_decision_about_an_approval_is_on_record(app: Any) -> None:
    @app.flow(key="big:{n}")
    def big(n: int) -> None:
        app.approve("charge", show={"n": n})

    big.start(1)
    app.worker().run(until_idle=True)
    (asked,) = app.approvals()
    app.decide(asked.id, True, by="ann", note="fine")
    app.decide(asked.id, False, by="bob")  # the first one counted
    assert told(app) == [("decide", "ann", "big", "big:1", "approved", "charge")]


def test_making_and_revoking_a_token_is_on_record_of_its_tenant(app: Any) -> None:
    _, token = block(create_token(app.store, "n8n", "acme", [Scope.READ], by="ann"))
    block(revoke_token(app.store, token.id, by="bob"))
    assert told(app) == []
    found = block(list_acts(app.store, "acme")).acts
    assert [(act.verb, act.by, act.operation, act.key, act.said) for act in found] == [
        ("revoke", "bob", "tokens", "n8n", "read"),
        ("create", "ann", "tokens", "n8n", "read"),
    ]


def test_acts_are_found_by_who_and_about_what(app: Any) -> None:
    for n, by in ((11, "ann"), (12, "bob"), (13, "ann")):
        app.retry_run(started(app, n), by=by)
    assert [key for _, _, _, key, *_ in told(app, by="ann")] == ["order:13", "order:11"]
    assert [key for _, _, _, key, *_ in told(app, key="order:12")] == ["order:12"]
    assert told(app, operation="mail") == []


def test_acts_are_listed_page_by_page_the_latest_first(app: Any) -> None:
    for n in range(11, 18):
        app.retry_run(started(app, n), by="ann")
    first = block(list_acts(app.store, "default", limit=3))
    second = block(list_acts(app.store, "default", limit=3, after=first.after))
    assert [act.key for act in (*first.acts, *second.acts)] == [f"order:{n}" for n in range(17, 11, -1)]
    assert block(list_acts(app.store, "default", limit=3, after=second.before)).acts == first.acts


@pytest.mark.parametrize("tenant", ["acme", "a" * 32, "a" * 33, "a" * 128])
def test_another_tenants_acts_are_not_listed(app: Any, tenant: str) -> None:
    for name in (tenant, f"{tenant[:-1]}b"):
        write = act_write(Address(f"{name}/pay/1", ACT_KIND, "1-retry"), ActNote("retry", "ann", "pay", name, name))
        assert isinstance(app.store.write(write).block(), Written)
    assert [act.key for act in block(list_acts(app.store, tenant)).acts] == [tenant]


def test_a_tenant_with_the_name_of_a_digest_sees_only_its_own_acts(app: Any) -> None:
    long = "a" * 33
    digest = sha256(long.encode()).hexdigest()[:32]
    for name in (long, digest):
        app.store.write(
            act_write(Address(f"{name}/pay/1", ACT_KIND, "1"), ActNote("retry", "ann", "pay", name, name))
        ).block()
    assert [act.key for act in block(list_acts(app.store, digest)).acts] == [digest]
    assert [act.key for act in block(list_acts(app.store, long)).acts] == [long]


def test_the_act_is_in_the_same_commit_as_what_it_is_about(app: Any) -> None:
    batches: list[Any] = []
    run = started(app, 11)
    app.store.on_commit.append(batches.append)
    app.retry_run(run, by="ann")
    (batch,) = [one for one in batches if any(write.at.kind == ACT_KIND for write in one.writes)]
    assert sorted(write.at.kind for write in batch.writes) == ["act", "run"]


def claimed(store: Any) -> Record:
    at = address_of("default", "pay", "1", CLAIM)
    store.write(Insert(at, "{}")).block()
    found: Record = store.read(at).block().record
    return found


def test_an_act_that_is_written_twice_is_one(app: Any) -> None:
    found = claimed(app.store)
    assert act_beside(app.store, found, "retry", "ann") == act_beside(app.store, found, "retry", "ann")


def test_a_store_of_single_records_keeps_no_acts(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = claimed(app.store)
    monkeypatch.setattr(app.store, "batch_limit", 1)
    assert act_beside(app.store, found, "settle", "ann") == ()


def test_acts_are_kept_for_a_year(tmp_path: Path) -> None:
    clock = ShiftedClock()
    with App(f"sqlite:///{tmp_path}/ledger.db", clock=clock) as app:
        app.store.write(*act_beside(app.store, claimed(app.store), "retry", "ann")).block()
        clock.advance(364 * 86_400.0)
        block(sweep(app.store))
        assert len(app.acts()) == 1
        clock.advance(2 * 86_400.0)
        block(sweep(app.store))
        assert app.acts() == []
