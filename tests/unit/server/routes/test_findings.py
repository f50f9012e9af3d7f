"""Findings at their addresses: listed, shown, and decided by a person who is named."""

from __future__ import annotations

import pytest

from tests.unit.server.routes.client import Client
from twiceproof import App

ROWS = [{"id": 1, "mail": "ann@b.de"}, {"id": 2, "mail": "ann@b.de"}]


@pytest.fixture
def finding(app: App) -> str:
    @app.reconcile(grace="0s")
    def people(find):
        yield find.duplicates(find.source("people", lambda: ROWS, key="{mail}", id="{id}"))

    (id_,) = app.reconcile_now("people").ids
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
