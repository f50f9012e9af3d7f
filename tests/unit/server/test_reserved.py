"""Reserved operations cannot be written through the claim service."""

import pytest

from twiceproof.claims.claim import run_id
from twiceproof.server.tokens import Scope

JSON = [("content-type", "application/json")]
ALL = (Scope.INGEST, Scope.RUN, Scope.READ)


def put(server, token, operation, key="k", body=b"{}"):
    return server.call("PUT", f"/v1/claims/{operation}/{key}", body, JSON, token=token)


@pytest.mark.parametrize("operation", ["start.sync", "hook.shop", "http", "POST.pay", "@notices", "sync@slots"])
def test_a_name_that_the_server_claims_under_cannot_be_claimed(server, operation):
    token = server.token(*ALL)
    answer = put(server, token, operation)
    assert (answer.status, answer.kind) == (400, "refused")
    for free in ("started", "hooks", "https", "sync2", f"my.{operation.strip('@').replace('@', '.')}"):
        assert put(server, token, free).status == 201


def test_a_flows_name_cannot_be_claimed_before_its_run_begins(server):
    """Or whoever may only send events could say what a run came to."""
    token = server.token(*ALL)
    assert "POST /v1/runs/sync" in put(server, token, "sync", "order:1").json["next"]
    assert server.call("POST", "/v1/runs/sync", b'{"id":"1"}', JSON, token=token).status == 202


def test_a_request_that_was_said_to_have_started_anothers_run_does_not_show_it(server, monkeypatch):
    """The second lock: what a start remembers is looked at again, whoever wrote it."""
    monkeypatch.setattr("twiceproof.server.services.claim_service.refuse_reserved", lambda *given: None)
    server.call("POST", "/v1/runs/sync", b'{"id":"secret"}', JSON, token=server.token(*ALL))
    thief = server.token(*ALL, tenant="thief", name="thief")
    taken = put(server, thief, "start.sync", "k", b'{"payload":{"id":"1"}}').json
    foreign = run_id("default/sync/order:secret")
    done = b'{"token":"%s","result":"%s"}' % (taken["token"].encode(), foreign.encode())
    assert server.call("POST", "/v1/claims/start.sync/k/complete", done, JSON, token=thief).status == 200
    asked = server.call(
        "POST", "/v1/runs/sync", b'{"payload":{"id":"1"}}', [*JSON, ("idempotency-key", "k")], token=thief
    )
    assert asked.status == 400
    assert b"secret" not in asked.body
