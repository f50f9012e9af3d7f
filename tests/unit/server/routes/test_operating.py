"""What an operator asks over HTTP: webhooks, schedules, external ids, tokens, health, and the fork of a run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.server.local_server import Shop
from tests.unit.server.routes.client import Client
from twiceproof import App, NotDone
from twiceproof.errors import ForgottenEarlyWarning
from twiceproof.operations import block
from twiceproof.server.tokens import find_token, hash_of
from twiceproof.stores.base import Finding

# -- webhooks ------------------------------------------------------------------------------------


def test_webhooks_say_what_they_start_and_whether_they_can_be_verified(app, client):
    @app.flow(key="order:{order[id]}")
    def sync(order: dict[str, Any]) -> None: ...

    secrets: list[str] = []
    app.webhook(Shop(), name="till", secret=lambda: secrets, start=sync)
    app.webhook(Shop(), name="post", secret="s3cret", start=sync)
    post, till = client("GET", "/v1/hooks", status=200)["hooks"]
    assert (post["name"], post["path"], post["source"], post["flow"]) == ("post", "/hooks/post", "shop", "sync")
    assert (post["secret_set"], till["secret_set"], post["kept_long_enough"]) == (True, False, True)
    assert b"s3cret" not in client("GET", "/v1/hooks", status=200).body
    secrets.append("new")
    assert client("GET", "/v1/hooks", status=200)["hooks"][1]["secret_set"] is True


def test_a_webhook_that_forgets_before_its_sender_does_is_not_kept_long_enough(app, client):
    @app.flow(key="order:{order[id]}")
    def sync(order: dict[str, Any]) -> None: ...

    with pytest.warns(ForgottenEarlyWarning):
        app.webhook(Shop(), secret="s3cret", start=sync, keep="1h")
    (hook,) = client("GET", "/v1/hooks", status=200)["hooks"]
    assert (hook["keep"], hook["kept_long_enough"]) == (3_600, False)
    assert hook["retry_window"] > hook["keep"]


# -- schedules -----------------------------------------------------------------------------------


@pytest.fixture
def timed(app: App) -> App:
    @app.every("1h")
    def refresh() -> None: ...

    @app.flow(key="{n}")
    def take(n: int) -> None: ...

    @app.poll(every="1m", start=take)
    def orders(since: Any) -> list[int]:
        return [1, 2]

    return app


def test_a_schedule_that_no_worker_prepared_has_no_next_tick(timed, client):
    found = client("GET", "/v1/schedules", status=200)
    (schedule,), (poll,) = found["schedules"], found["polls"]
    assert (schedule["flow"], schedule["when"], schedule["next"], schedule["last"]) == ("refresh", "1h", None, None)
    assert (poll["name"], poll["flow"], poll["next"], poll["started"]) == ("orders", "take", None, 0)


def test_schedules_and_polls_say_what_was_last_and_what_is_next(timed, client, clock):
    timed.worker().run(until_idle=True)
    first = client("GET", "/v1/schedules", status=200)["schedules"][0]
    clock.advance(3_601)
    timed.worker().run(until_idle=True)
    found = client("GET", "/v1/schedules", status=200)
    (schedule,), (poll,) = found["schedules"], found["polls"]
    assert (schedule["last"], schedule["next"]) == (first["next"], first["next"] + 3_600)
    assert (schedule["skipped"], schedule["overlap"]) == (0, "skip")
    assert poll["started"] == 4
    assert poll["until"] < poll["next"] <= poll["until"] + 60
    assert client("GET", "/schedules", status=200).text.count("orders") >= 1


def test_another_tenants_schedules_are_not_listed(timed):
    found = Client(timed, tenant="acme")("GET", "/v1/schedules", status=200)
    assert (found["schedules"], found["polls"]) == ([], [])


# -- external ids and forks ----------------------------------------------------------------------


@pytest.fixture
def billed(app: App) -> str:
    """A run with two steps, the first of which has an external id, and the second fails for good."""

    @app.step(repeat="safe", external="inv_{result}")
    def bill(n: int) -> int:
        return n

    @app.step(repeat="safe")
    def tell(n: int) -> None:
        raise NotDone("closed", final=True)

    @app.flow(key="order:{n}")
    def pay(n: int) -> None:
        tell(bill(n))

    run = pay.start(17).id
    app.worker().run(until_idle=True)
    return run


def links(client: Client, name: str) -> list[tuple[str, str, str]]:
    found = client("GET", f"/v1/ids?name={name}", status=200)["ids"]
    return [(one["external"], one["key"], one["step"]) for one in found]


def test_an_external_id_leads_to_its_run_and_back(app, client, billed):
    here = [("inv_17", "order:17", "bill")]
    assert [links(client, name) for name in ("inv_17", billed, "order:17", "pay/order:17")] == [here] * 4
    assert links(client, "inv_18") == []
    assert links(Client(app, tenant="acme"), "inv_17") == []


@pytest.mark.parametrize("query", ["", "?name=", "?name=%00"])
def test_ids_of_nothing_are_refused(client, query):
    client("GET", f"/v1/ids{query}", status=400)


def test_a_plan_of_a_fork_says_what_is_kept_and_writes_nothing(app, client, billed):
    before = dict(app.store.engine._records)
    plan = client("GET", f"/v1/runs/{billed}/fork?key=order:17b&step=tell", status=200)
    assert (plan["key"], plan["kept"], plan["again"]) == ("order:17b", ["bill"], ["tell"])
    assert dict(app.store.engine._records) == before


def test_a_fork_starts_the_run_that_was_planned_and_is_on_record(app, client, billed):
    plan = client("GET", f"/v1/runs/{billed}/fork?key=order:17b", status=200)
    made = client("POST", f"/v1/runs/{billed}/fork", {"key": "order:17b", "by": "ann"}, 201)
    assert made.json == plan.json
    assert made.headers["location"] == f"/v1/runs/{made['run']}"
    assert client("GET", made.headers["location"], status=200)["run"]["key"] == "order:17b"
    (act,) = client("GET", "/v1/acts", status=200)["acts"]
    assert (act["verb"], act["by"], act["key"]) == ("fork", "ann", "order:17b")
    again = client("POST", f"/v1/runs/{billed}/fork", {"key": "order:17b"}, 409)
    assert again["type"].endswith("state-conflict")


def test_a_fork_is_on_record_under_the_tokens_name(app, billed):
    client = Client(app, by="n8n")
    client("POST", f"/v1/runs/{billed}/fork", {"key": "order:17b", "by": "ann"}, 201)
    assert client("GET", "/v1/acts", status=200)["acts"][0]["by"] == "n8n"


def test_a_fork_from_a_step_that_is_not_there_is_refused(client, billed):
    client("GET", f"/v1/runs/{billed}/fork?key=b&step=none", status=409)
    client("POST", f"/v1/runs/{billed}/fork", {"key": "b", "step": "none"}, 409)
    client("POST", f"/v1/runs/{billed}/fork", {"key": ""}, 400)
    client("GET", f"/v1/runs/{billed}/fork", status=400)


def test_another_tenants_run_is_not_forked(app, billed):
    theirs = Client(app, tenant="acme")
    theirs("GET", f"/v1/runs/{billed}/fork?key=b", status=404)
    theirs("POST", f"/v1/runs/{billed}/fork", {"key": "b"}, 404)


# -- tokens --------------------------------------------------------------------------------------


def test_a_token_is_shown_once_and_is_what_its_scopes_say(app, client):
    made = client("POST", "/v1/tokens", {"name": "n8n", "scopes": ["read", "ingest"], "by": "ann"}, 201)
    found = block(find_token(app.store, hash_of(made["token"])))
    assert found is not None
    assert (found.name, found.tenant, set(found.scopes)) == ("n8n", "default", {"read", "ingest"})
    listed = client("GET", "/v1/tokens", status=200)
    assert [(one["id"], one["state"]) for one in listed["tokens"]] == [(made["id"], "live")]
    assert made["token"].encode() not in listed.body
    (act,) = client("GET", "/v1/acts", status=200)["acts"]
    assert (act["verb"], act["by"], act["key"]) == ("create", "ann", "n8n")


def test_a_token_is_for_a_tenant_and_a_time(app, client, clock):
    made = client("POST", "/v1/tokens", {"name": "a", "scopes": ["read"], "tenant": "acme", "expires": "1h"}, 201)
    assert (made["tenant"], made["expires_at"]) == ("acme", made["created_at"] + 3_600)
    clock.advance(3_601)
    assert client("GET", "/v1/tokens", status=200)["tokens"][0]["state"] == "expired"


def test_a_revoked_token_is_listed_and_not_known_any_more(app, client):
    made = client("POST", "/v1/tokens", {"name": "n8n", "scopes": ["read"]}, 201)
    gone = client("POST", f"/v1/tokens/{made['id']}/revoke", {"by": "ann"}, 200)
    assert (gone["id"], gone["state"]) == (made["id"], "revoked")
    assert block(find_token(app.store, hash_of(made["token"]))) is None
    assert client("POST", f"/v1/tokens/{made['id']}/revoke", {"by": "bob"}, 200).json == gone.json
    assert client("GET", "/v1/tokens", status=200)["tokens"][0]["state"] == "revoked"
    acts = client("GET", "/v1/acts", status=200)["acts"]
    assert sorted((act["verb"], act["by"]) for act in acts) == [("create", "http"), ("revoke", "ann")]


def test_a_token_is_revoked_by_its_id_alone(client):
    client("POST", "/v1/tokens", {"name": "n8n", "scopes": ["read"]}, 201)
    assert client("POST", "/v1/tokens/n8n/revoke", {}, 404)["type"].endswith("no-such-token")
    assert client("GET", "/v1/tokens", status=200)["tokens"][0]["state"] == "live"


@pytest.mark.parametrize(
    "body",
    [
        {"name": "n8n", "scopes": []},
        {"name": "n8n", "scopes": ["operator"]},
        {"name": "a b", "scopes": ["read"]},
        {"name": "n8n", "scopes": ["read"], "expires": "0s"},
        {"name": "n8n", "scopes": ["read"], "tenant": "a/b"},
        {"name": "n8n", "scopes": ["read"], "token": "mine"},
        {"name": "n8n", "scopes": ["read"], "by": "a" * 2_000},
    ],
)
def test_a_token_that_cannot_be_is_refused(client, body):
    assert client("POST", "/v1/tokens", body).status in (400, 422)
    assert client("GET", "/v1/tokens", status=200)["tokens"] == []


def test_an_administrator_of_another_tenant_has_no_say_about_tokens(app, client):
    made = client("POST", "/v1/tokens", {"name": "n8n", "scopes": ["read"]}, 201)
    theirs = Client(app, by="boss", tenant="acme")
    theirs("GET", "/v1/tokens", status=403)
    theirs("POST", "/v1/tokens", {"name": "spy", "scopes": ["admin"], "tenant": "default"}, 403)
    theirs("POST", f"/v1/tokens/{made['id']}/revoke", {}, 403)
    assert [one["state"] for one in client("GET", "/v1/tokens", status=200)["tokens"]] == ["live"]


# -- health --------------------------------------------------------------------------------------


def test_health_has_the_findings_of_the_store_and_where_it_is(app, client, monkeypatch):
    finding = Finding("warn", "disk", "nearly full", "Delete files.")
    monkeypatch.setattr(app.store, "examine", lambda: [finding])
    report = client("GET", "/v1/health", status=200)
    assert (report["ready"], report["store"]) == (True, "memory://")
    assert report["findings"] == [{"level": "warn", "name": "disk", "found": "nearly full", "advice": "Delete files."}]
    assert "nearly full" in client("GET", "/health", status=200).text
    Client(app, by="boss", tenant="acme")("GET", "/v1/health", status=403)
