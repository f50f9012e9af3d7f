"""The claim service: who gets a key, what the others hear, and what becomes of a token."""

from __future__ import annotations

from contextvars import copy_context

import msgspec
import pytest

from tests.unit.server.services.claim_client import ClaimClient, body_of
from twiceproof import App, InProgress, KeyRefused, Misuse, PayloadMismatch
from twiceproof.claims.claim import address_of, claim_of
from twiceproof.inbound.source import collect
from twiceproof.operations import block
from twiceproof.server.services.claim_service import write_token
from twiceproof.stores.grouped import GroupedStore

RUN_7, RUN_8 = "7d1f2c58-94ab-4b0e-9c1d-5a52ac2c5a11", "e3b0c442-98fc-4c14-9afb-f4c8996fb924"


@pytest.fixture
def server():
    return ClaimClient()


# -- claiming ------------------------------------------------------------------------------------


def test_the_first_is_told_that_the_key_is_its_own(server):
    answer = body_of(server.take(lease="5m"), 201)
    assert (answer["claimed"], answer["state"], answer["attempt"]) == (True, "held", 1)
    assert answer["lease_until"] == server.clock.now() + 300
    assert answer["token"].startswith("ct_") and answer["run"].startswith("run_")


def test_the_second_is_told_when_to_retry(server):
    server.take(lease=12)
    reply = server.take()
    answer = body_of(reply, 409)
    assert (answer["claimed"], answer["state"], answer["retry_after"]) == (False, "held", 12)
    assert reply.header("retry-after") == "12"
    assert "Try again" in answer["next"]


def test_a_long_lease_does_not_keep_the_second_away_for_as_long(server):
    server.take(lease="2d")
    assert server.take().header("retry-after") == "30"


@pytest.mark.parametrize("span", ["36500d", "36525d"])
def test_the_longest_lease_that_can_be_said_is_taken(server, span):
    """The store itself took a few days less, and the caller was told that it could not be reached."""
    token = server.token(lease=span)
    body_of(server.complete(token, keep=span), 200)


def test_a_duplicate_gets_the_result_digit_for_digit(server):
    token = server.token(payload={"order": 1})
    assert body_of(server.complete(token, result={"price": 1.10, "n": 12345678901234567890}), 200)["state"] == "done"
    reply = server.take(payload={"order": 1})
    assert b'"result":{"price":1.1,"n":12345678901234567890}' in reply.body
    answer = body_of(reply, 200)
    assert (answer["claimed"], answer["state"], answer["result_kept"]) == (False, "done", True)


def test_a_result_may_hold_nothing_somewhere(server):
    server.complete(server.token(), result={"a": None})
    assert body_of(server.take(), 200)["result"] == {"a": None}


@pytest.mark.parametrize(("first", "other"), [(None, 1), (1, None), (None, {}), ({"a": None}, None)])
def test_null_is_a_payload_and_another_one_is_refused(server, first, other):
    token = server.token(payload=first)
    body_of(server.take(payload=other), 422)
    assert body_of(server.take(payload=first), 409)["state"] == "held"
    body_of(server.complete(token), 200)
    body_of(server.take(payload=other), 422)
    body_of(server.take(payload=first), 200)


@pytest.mark.parametrize("first", [{}, {"payload": 1}, {"payload": None}])
def test_without_a_payload_nothing_is_compared(server, first):
    server.take(**first)
    assert body_of(server.take(), 409)["state"] == "held"


def test_none_is_a_payload_for_a_program_too(server):
    server.token(payload=None)
    with App(store=GroupedStore(server.engine)) as app:
        for given, outcome in (({"payload": None}, InProgress), ({}, InProgress), ({"payload": 1}, PayloadMismatch)):
            with pytest.raises(outcome), app.claim("ship", "order:1", **given):
                pass


def test_work_that_returns_nothing_is_done_with_null(server):
    server.complete(server.token())
    answer = body_of(server.take(), 200)
    assert (answer["result"], answer["result_kept"]) == (None, True)


@pytest.mark.parametrize("ended", [False, True])
def test_another_payload_is_refused_and_the_same_in_another_order_is_not(server, ended):
    token = server.token(payload={"a": 1, "b": 2.50})
    if ended:
        server.complete(token)
    answer = body_of(server.take(payload={"a": 1, "b": 3}), 422)
    assert "another key" in answer["next"] and answer["claimed"] is False
    assert server.take(payload={"b": 2.5, "a": 1}).status == (200 if ended else 409)


def test_a_payload_has_the_fingerprint_that_a_program_gives_it(server):
    server.token(payload={"a": 1})
    with App(GroupedStore(server.engine, clock=server.clock), clock=server.clock) as app:
        record = app.store.read(app.claim("ship", "order:1", payload={"a": 1})._request.at).block().record
        assert app.claim("ship", "order:1", payload={"a": 1})._request.fingerprint in record.body
        assert app.claim("ship", "order:1", payload={"a": 2})._request.fingerprint not in record.body


def test_after_a_failure_that_may_be_tried_again_the_next_one_claims(server):
    body_of(server.fail(server.token(), error="closed", retryable=True), 200)
    assert body_of(server.take(), 201)["attempt"] == 2


def test_after_a_failure_for_good_nobody_claims_until_a_person_has_said_so(server):
    server.fail(server.token(), error="no such customer", retryable=False)
    answer = body_of(server.take(), 409)
    assert (answer["state"], answer["error"]) == ("failed", "no such customer")
    assert "/v1/reviews/run_" in answer["next"]


def test_a_lapsed_claim_is_not_free_it_waits_for_a_person(server):
    server.take(lease=30)
    server.clock.advance(31)
    answer = body_of(server.take(), 409)
    assert answer["state"] == "review"
    assert "claims settle --happened ship order:1" in answer["next"]
    assert f"/v1/reviews/{answer['run']}" in answer["next"]


@pytest.mark.parametrize("parked", [False, True])
def test_who_says_that_it_does_no_harm_claims_what_lapsed_or_was_parked(server, parked):
    server.take(lease=30)
    server.clock.advance(31)
    if parked:
        body_of(server.take(), 409)
    assert body_of(server.take(repeat="safe"), 201)["attempt"] == 2


def test_harmless_or_not_another_payload_is_refused(server):
    server.take(lease=30, payload=1)
    server.clock.advance(31)
    server.take(payload=1)
    body_of(server.take(repeat="safe", payload=2), 422)


def test_a_holder_that_does_not_know_leaves_it_to_a_person(server):
    assert body_of(server.fail(server.token(), error="timed out", unknown=True), 200)["state"] == "review"
    assert "timed out" in body_of(server.take(), 409)["detail"]


def test_the_same_request_sent_again_holds_what_it_held(server):
    first = body_of(server.take(request_id=RUN_7, lease=60), 201)
    server.clock.advance(20)
    assert body_of(server.again().take(request_id=RUN_7, lease=60), 201) == first
    body_of(server.take(request_id=RUN_8), 409)
    body_of(server.complete(first["token"]), 200)


def test_the_same_request_with_another_payload_is_refused(server):
    server.take(request_id=RUN_7, payload=1)
    body_of(server.take(request_id=RUN_7, payload=2), 422)


def test_the_same_request_after_its_lease_is_as_lost_as_any(server):
    server.take(request_id=RUN_7, lease=30)
    server.clock.advance(31)
    assert body_of(server.take(request_id=RUN_7), 409)["state"] == "review"


@pytest.mark.parametrize(
    "known",
    [
        "17-0",
        "run-7",
        "08586073612345678901234567890CU12",
        "00000000-0000-0000-0000-000000000017",
        "886313e1-3b8a-5372-9b90-0c9aee199e5d",
        "prod-n8n execution 17 item 0",
        " ",
        RUN_7[:-1],
        RUN_7.replace("-", ""),
    ],
)
def test_a_request_id_that_a_second_caller_could_come_to_by_itself_is_refused(server, known):
    """A counter, the name of a run, a UUID made of a name: whoever sent it too would be handed the token."""
    with pytest.raises(Misuse, match="random UUID"):
        server.take(request_id=known)
    server.look(status=404)


@pytest.mark.parametrize("known", [RUN_7, RUN_7.upper(), "01890a5d-ac96-774b-bcce-b302099a8057"])
def test_a_random_uuid_is_a_request_id(server, known):
    first = body_of(server.take(request_id=known, lease=60), 201)
    assert body_of(server.take(request_id=known.lower(), lease=60), 201) == first


# -- tokens --------------------------------------------------------------------------------------


def test_a_token_is_known_to_every_process_on_the_store(server):
    token = server.token()
    assert body_of(server.again().complete(token), 200)["state"] == "done"


def test_a_token_that_was_never_handed_out_changes_nothing(server):
    token = server.token()
    stem, _, mark = token.rpartition(".")
    forged = [f"{stem}.{'0' * 32}", f"{stem}.{mark[:-1]}{'0' if mark[-1] != '0' else '1'}", "x", "", "ct_1.1.é.ü"]
    for one in forged:
        body_of(server.complete(one), 403)
        body_of(server.fail(one), 403)
        body_of(server.renew(one), 403)
    assert server.look()["state"] == "held" and server.look()["evidence"] == []
    body_of(server.complete(token), 200)


def test_a_token_is_for_one_key_and_one_tenant(server):
    token = server.token("order:1")
    server.take("order:2")
    body_of(server.complete(token, "order:2"), 403)
    other = server.again("acme")
    other.take("order:1")
    body_of(other.complete(token, "order:1"), 403)


def test_tenants_do_not_meet(server):
    server.complete(server.token(), result="ours")
    other = server.again("acme")
    assert other.look(status=404)["state"] == "unclaimed"
    assert body_of(other.take(), 201)["claimed"] is True


@pytest.mark.parametrize("verb", ["complete", "fail"])
def test_what_is_said_twice_is_heard_once_and_answered_alike(server, verb):
    """The answer was lost on the way, and the tool sends it again."""
    token = server.token()
    say = getattr(server, verb)
    assert body_of(say(token), 200) == body_of(say(token), 200)
    assert server.look()["evidence"] == []


@pytest.mark.parametrize("verb", ["complete", "fail"])
def test_what_is_said_twice_at_once_is_heard_once_and_answered_alike(server, verb, monkeypatch):
    """The first is still on its way when the tool gives up on it: both find the claim held, one is quicker."""
    token = server.token()
    slower = getattr(server.claims, verb)

    def overtaken(*given, **more):
        body_of(getattr(server.again(), verb)(token), 200)
        return (yield from slower(*given, **more))

    monkeypatch.setattr(server.claims, verb, overtaken)
    first, again = getattr(server, verb)(token), getattr(server.again(), verb)(token)
    assert body_of(first, 200) == body_of(again, 200)
    assert server.look()["evidence"] == []


def test_another_result_that_comes_at_the_same_time_is_evidence(server, monkeypatch):
    token = server.token()
    slower = server.claims.complete

    def overtaken(*given, **more):
        body_of(server.again().complete(token, result="first"), 200)
        return (yield from slower(*given, **more))

    monkeypatch.setattr(server.claims, "complete", overtaken)
    assert body_of(server.complete(token, result="second"), 409)["state"] == "done"
    assert body_of(server.take(), 200)["result"] == "first"
    assert [piece["result"] for piece in server.look()["evidence"]] == ["second"]


@pytest.mark.parametrize("retryable", [True, False])
def test_another_word_about_trying_again_is_not_taken_for_the_same_one(server, retryable):
    token = server.token()
    body_of(server.fail(token, error="first", retryable=retryable), 200)
    body_of(server.fail(token, error="in other words", retryable=retryable), 200)
    body_of(server.fail(token, error="second", retryable=not retryable), 409)
    assert [piece["error"] for piece in server.look()["evidence"]] == ["second"]
    body_of(server.take(), 201 if retryable else 409)


def test_another_word_about_trying_again_that_comes_at_the_same_time_is_evidence(server, monkeypatch):
    token = server.token()
    slower = server.claims.fail

    def overtaken(*given, **more):
        body_of(server.again().fail(token, retryable=True), 200)
        return (yield from slower(*given, **more))

    monkeypatch.setattr(server.claims, "fail", overtaken)
    assert body_of(server.fail(token, error="second", retryable=False), 409)["state"] == "failed"
    assert [piece["error"] for piece in server.look()["evidence"]] == ["second"]


def test_another_result_from_the_same_token_is_evidence(server):
    token = server.token()
    server.complete(token, result=1)
    body_of(server.complete(token, result=2), 409)
    assert body_of(server.take(), 200)["result"] == 1
    assert [piece["result"] for piece in server.look()["evidence"]] == [2]


def test_a_token_that_lost_its_claim_is_told_so_and_its_finding_is_kept(server):
    token = server.token(lease=30)
    server.clock.advance(31)
    newer = server.token(repeat="safe")
    answer = body_of(server.complete(token, result={"parcel": "P-1"}), 409)
    assert "evidence" in answer["detail"] and answer["state"] == "held"
    assert [piece["result"] for piece in server.look()["evidence"]] == [{"parcel": "P-1"}]
    body_of(server.complete(newer, result={"parcel": "P-2"}), 200)


def test_a_late_holders_evidence_about_a_parked_claim_comes_with_how_to_settle_it(server):
    token = server.token(lease=30)
    server.clock.advance(31)
    body_of(server.take(), 409)
    answer = body_of(server.complete(token, result=1), 409)
    assert answer["state"] == "review" and "claims settle" in answer["next"]


def test_a_holder_that_is_late_but_alone_may_still_complete(server):
    token = server.token(lease=30)
    server.clock.advance(31)
    body_of(server.complete(token), 200)


def test_a_failure_told_too_late_is_evidence_too(server):
    token = server.token(lease=30)
    server.clock.advance(31)
    server.token(repeat="safe")
    body_of(server.fail(token, error="no stock"), 409)
    assert [piece["error"] for piece in server.look()["evidence"]] == ["no stock"]


def test_renewing_holds_on_for_another_lease(server):
    token = server.token(lease=30)
    server.clock.advance(20)
    assert body_of(server.renew(token, lease=60), 200)["lease_until"] == server.clock.now() + 60
    server.clock.advance(50)
    body_of(server.take(), 409)
    assert server.look()["lapsed"] is False


def test_a_token_that_lost_its_claim_cannot_renew_it(server):
    token = server.token(lease=30)
    server.clock.advance(31)
    server.token(repeat="safe")
    assert "Stop" in body_of(server.renew(token), 409)["detail"]


def test_a_token_of_a_claim_that_is_gone_is_lost(server):
    token = server.token(lease=30)
    block(server.claims.free(server.service._ask("ship", "order:1").at, force=True))
    assert body_of(server.complete(token, result=1), 409)["state"] == "unclaimed"


# -- lives ---------------------------------------------------------------------------------------


def test_a_key_is_known_for_as_long_as_was_said(server):
    server.complete(server.token(), keep="1h")
    server.clock.advance(3_599)
    body_of(server.take(), 200)
    server.clock.advance(2)
    body_of(server.take(), 201)


@pytest.mark.parametrize("keep", ["forever", None])
def test_a_key_is_known_for_ever_only_where_that_was_said(server, keep):
    server.complete(server.token(), **({"keep": keep} if keep else {}))
    server.clock.advance(31 * 86_400)
    assert server.take().status == (200 if keep else 201)


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", " ", "a\0b", " order:1", "x" * 1_025])
def test_a_key_that_names_nothing_is_refused(server, key):
    with pytest.raises(KeyRefused):
        server.take(key)


@pytest.mark.parametrize("key", ["a/b/c", "käse/ναι 🧀", "100%", "a+b&c=d?#", "..", "order:1/complete"])
def test_any_other_key_is_a_key(server, key):
    token = server.token(key)
    assert server.look(key)["key"] == key
    body_of(server.complete(token, key), 200)


def test_two_ways_to_write_a_letter_are_one_key(server):
    server.take("Ka\u0308se")
    body_of(server.take("K\u00e4se"), 409)


@pytest.mark.parametrize("lease", ["soon", "300", 0, -1, "0s"])
def test_a_lease_that_is_none_is_refused(server, lease):
    with pytest.raises(Misuse, match="lease"):
        server.take(lease=lease)


def test_a_store_that_can_lose_writes_takes_only_what_does_no_harm(server):
    server.store.best_effort = True
    assert "PostgreSQL" in body_of(server.take(), 501)["next"]
    body_of(server.take(repeat="safe"), 201)


def test_a_flow_is_not_claimed_from_here(server):
    with App(GroupedStore(server.engine, clock=server.clock), clock=server.clock) as app:

        @app.flow(key="order:{n}", name="ship")
        def ship(n: int) -> int:
            return n

        ship.start(1)
        for repeat in ("never", "safe"):
            with pytest.raises(Misuse, match="POST /v1/runs/ship"):
                server.take(repeat=repeat)
        app.worker().run(until_idle=True)
        with pytest.raises(Misuse, match="POST /v1/runs/ship"):
            server.take()


def test_looking_changes_nothing(server):
    server.take(lease=30)
    server.clock.advance(31)
    assert [server.look()["state"] for _ in range(3)] == ["held"] * 3
    assert server.look()["lapsed"] is True


def test_those_who_are_not_first_are_counted_and_another_payload_is_not(server):
    token = server.token(payload={"order": 1})
    server.take(payload={"order": 1})
    server.complete(token, result=1)
    server.take(payload={"order": 1})
    server.take(payload={"order": 2})
    ((row,),) = server.claims.duplicates.take().values()
    assert (row.source, row.operation, row.key, row.count) == ("http", "ship", "order:1", 2)


def test_what_became_of_a_claim_is_told_to_the_log_and_the_metrics(server):
    def visited():
        response = collect()
        token = server.token(payload={"order": 1})
        server.take(payload={"order": 1})
        server.take(payload={"order": 2})
        server.complete(token)
        server.take(payload={"order": 1})
        return response

    response = copy_context().run(visited)
    assert [one.outcome for one in response] == ["new", "busy", "mismatch", "duplicate"]
    assert {(one.entry_point, one.key) for one in response} == {("claims", "order:1")}
    assert all(one.run.startswith("run_") for one in response)


def test_who_reads_the_store_and_its_signing_key_still_has_no_token(server):
    """Fence, attempt and owner can all be read; of the secret there is only a hash."""
    genuine = server.token()
    fence, attempt, secret, _ = genuine.removeprefix("ct_").split(".")
    at = address_of("default", "ship", "order:1")
    for guess in ("0" * 32, secret[::-1]):
        forged = block(write_token(server.store, at, int(fence, 16), int(attempt, 16), guess))
        for answer in (server.complete(forged), server.fail(forged), server.renew(forged)):
            assert answer.status == 403
    owner = claim_of(server.store.read(at).block().record).owner.removeprefix("http-")
    assert owner not in genuine
    assert server.complete(genuine).status == 200


@pytest.mark.parametrize("number", ["1e400", "[-1e999]", "1" * 5_000])
def test_a_number_that_nobody_could_read_back_is_no_result(server, number):
    token = server.token()
    with pytest.raises(Misuse):
        server.complete(token, result=msgspec.Raw(number.encode()))
    assert server.complete(token, result=2**64).status == 200
