"""Reconciliations and their findings at their addresses: listed, started once per request, and decided by a person who
is named."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.server.routes.client import Client
from twiceproof import App

PEOPLE = "/v1/reconciliations/people"


@pytest.fixture
def rows(app: App) -> list[dict[str, Any]]:
    found = [{"id": 1, "mail": "ann@b.de"}, {"id": 2, "mail": "ann@b.de"}]

    @app.reconcile(every="1d", at="03:00", grace="1h")
    def people(find):
        yield find.duplicates(find.source("people", lambda: found, key="{mail}", id="{id}"))

    return found


def work(app: App) -> None:
    app.worker().run(until_idle=True)


def listed(client: Client) -> dict[str, Any]:
    (found,) = client("GET", "/v1/reconciliations", status=200)["reconciliations"]
    return found


def test_they_are_listed_with_schedule_last_run_and_open_findings(client, app, clock, rows):
    never = {"last_run_at": None, "last_whole_run_at": None, "rows": {}, "open": 0}
    assert listed(client) == {"name": "people", "every": "1d at 03:00", **never}
    now = clock.now()
    client("POST", PEOPLE, {"grace": "0s"}, status=202)
    work(app)
    after = {"last_run_at": now, "last_whole_run_at": now, "rows": {"people": 2}, "open": 1}
    assert listed(client) == {"name": "people", "every": "1d at 03:00", **after}
    (finding,) = client("GET", "/v1/findings", status=200)["findings"]
    client("POST", f"/v1/findings/{finding['id']}", {"decision": "acknowledge", "by": "ann"}, status=200)
    assert listed(client)["open"] == 0


def test_without_any_the_list_is_empty(client):
    assert client("GET", "/v1/reconciliations", status=200).json == {"reconciliations": []}


def test_one_that_is_started_can_be_followed_to_its_report(client, app, rows):
    started = client("POST", PEOPLE, {"grace": "0s"}, status=202)
    assert (started["flow"], started["state"], started["started"]) == ("people", "queued", True)
    work(app)
    shown = client("GET", started.headers["location"], status=200)
    assert shown["run"]["state"] == "done"
    assert [one["key"] for one in shown["result"]["findings"]] == ["ann@b.de"]


@pytest.mark.parametrize(("body", "state"), [({}, "waiting"), ({"grace": "0s"}, "done")])
def test_the_grace_time_is_as_declared_or_as_given(client, app, rows, body, state):
    started = client("POST", PEOPLE, body, status=202)
    work(app)
    assert client("GET", started.headers["location"], status=200)["run"]["state"] == state


def test_a_request_sent_again_with_its_key_starts_nothing(client, clock, rows):
    first = client("POST", PEOPLE, {}, status=202, idempotency_key="k1")
    clock.advance(5)
    again = client("POST", PEOPLE, {}, status=200, idempotency_key="k1")
    assert (again["run"], again["started"]) == (first["run"], False)
    client("POST", PEOPLE, {"grace": "0s"}, status=422, idempotency_key="k1")
    other = client("POST", PEOPLE, {}, status=202, idempotency_key="k2")
    assert other["run"] != first["run"]


def test_what_cannot_be_started_is_refused_with_the_next_move(client, app, rows):
    @app.flow(key="order:{order}")
    def sync(order: int) -> int:
        return order

    for name in ("nobody", "sync", "people.plan"):
        refused = client("POST", f"/v1/reconciliations/{name}", {}, status=404)
        assert "people" in refused.text
    for body in ({"grace": "soon"}, {"grace": "-1s"}, {"tick": "2026-01-01T00:00:00Z"}, b"[]"):
        client("POST", PEOPLE, body, status=400)
    assert client("GET", "/v1/runs?state=all", status=200)["runs"] == []


def test_each_tenant_has_runs_and_findings_of_its_own(app, client, rows):
    other = Client(app, by="eve", tenant="acme")
    client("POST", PEOPLE, {"grace": "0s"}, status=202)
    work(app)
    assert (listed(client)["open"], listed(other)["open"]) == (1, 0)
    assert listed(other)["last_run_at"] is None


# -- findings ------------------------------------------------------------------------------------


@pytest.fixture
def finding(app: App, rows: list[dict[str, Any]]) -> str:
    (id_,) = app.reconcile_now("people", grace="0s").ids
    return id_


def test_findings_are_listed_and_shown(client, finding):
    (found,) = client("GET", "/v1/findings", status=200)["findings"]
    assert (found["id"], found["key"], found["state"]) == (finding, "ann@b.de", "open")
    assert client("GET", f"/v1/findings/{finding}", status=200).json == found
    assert client("GET", "/v1/findings?state=resolved", status=200)["findings"] == []
    assert len(client("GET", "/v1/findings?name=people&state=all&limit=1", status=200)["findings"]) == 1
    client("GET", "/v1/findings?state=shut", status=400)


@pytest.mark.parametrize(
    ("decision", "state"), [("acknowledge", "acknowledged"), ("suppress", "suppressed"), ("resolve", "resolved")]
)
def test_a_person_decides(client, finding, decision, state):
    body = {"decision": decision, "by": "ann", "note": "asked"}
    changed = client("POST", f"/v1/findings/{finding}", body, status=200).json
    assert (changed["state"], changed["by"], changed["note"]) == (state, "ann", "asked")


def test_the_name_of_the_token_decides_over_what_is_sent(app, finding):
    changed = Client(app, by="ben")("POST", f"/v1/findings/{finding}", {"decision": "acknowledge", "by": "ann"})
    assert changed["by"] == "ben"


def test_a_suppression_ends_after_the_time_that_was_given(client, clock, finding):
    body = {"decision": "suppress", "until": "2d", "by": "ann"}
    assert client("POST", f"/v1/findings/{finding}", body, status=200)["until"] == clock.now() + 2 * 86_400


def test_what_cannot_be_decided_is_refused_with_the_next_move(client, finding):
    client("POST", f"/v1/findings/{finding}", {"decision": "acknowledge"}, status=400)
    client("POST", f"/v1/findings/{finding}", {"decision": "forget", "by": "ann"}, status=400)
    client("POST", f"/v1/findings/{finding}", {"decision": "suppress", "until": "soon", "by": "ann"}, status=400)
    client("GET", "/v1/findings/fnd_none", status=404)
    client("POST", "/v1/findings/fnd_none", {"decision": "resolve", "by": "ann"}, status=404)
    client("POST", f"/v1/findings/{finding}", {"decision": "resolve", "by": "ann"}, status=200)
    client("POST", f"/v1/findings/{finding}", {"decision": "acknowledge", "by": "ann"}, status=409)


def test_another_tenants_findings_are_not_there(app, finding):
    other = Client(app, by="eve", tenant="acme")
    assert other("GET", "/v1/findings", status=200)["findings"] == []
    other("GET", f"/v1/findings/{finding}", status=404)
    other("POST", f"/v1/findings/{finding}", {"decision": "resolve"}, status=404)


def test_findings_rows_and_whole_runs_are_in_the_metrics(client, finding):
    text = client("GET", "/metrics", status=200).text
    assert 'twiceproof_findings_open{check="duplicates:people",reconciliation="people"} 1.0' in text
    assert 'twiceproof_source_rows{reconciliation="people",source="people"} 2.0' in text
    assert 'twiceproof_last_whole_run_age_seconds{reconciliation="people"}' in text
