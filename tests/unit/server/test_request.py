"""What stands in a query and is not valid here is refused, unless outside senders add things of their own there."""

import pytest

from tests.unit.server.test_matrix import address, title
from twiceproof.server.openapi import description
from twiceproof.server.routes import ROUTES

STRICT = [route for route in ROUTES if not route.ignores_unknown_query]
TOLERANT = [route for route in ROUTES if route.ignores_unknown_query]
DESCRIBED = description(ROUTES)["paths"]


def parameters(route):
    """As /openapi.json tells them."""
    told = DESCRIBED[route.path][route.method.lower()].get("parameters", [])
    return [parameter["name"] for parameter in told if parameter["in"] == "query"]


@pytest.mark.parametrize("route", STRICT, ids=title)
def test_a_parameter_that_is_not_known_is_refused_and_named_beside_those_that_are(server, route):
    answer = server.call(route.method, f"{address(route)}?zzz=1", b"{}")
    assert (answer.status, answer.kind) == (400, "bad-query")
    assert "'zzz'" in answer.json["detail"]
    assert all(name in answer.json["next"] for name in parameters(route))


@pytest.mark.parametrize("route", TOLERANT, ids=title)
def test_where_senders_add_their_own_nothing_is_refused_for_it(server, route):
    plain = server.call(route.method, address(route), b"{}")
    assert server.call(route.method, f"{address(route)}?zzz=1&zzz=2", b"{}").status == plain.status


def test_only_addresses_that_outsiders_are_given_and_probes_are_tolerant():
    assert {route.path for route in TOLERANT} == {
        "/hooks/{name}",
        "/v1/callbacks/{token}",
        "/v1/approvals/link/{token}",
        "/healthz",
        "/readyz",
    }


def test_what_is_described_is_taken(server):
    for route in STRICT:
        for name in parameters(route):
            answer = server.call(route.method, f"{address(route)}?{name}=1", b"{}")
            assert "There is no parameter" not in answer.json.get("detail", ""), (route.path, name)


@pytest.mark.parametrize("query", ["alway200=true", "Always200=true", "always200=true&x", "always200%20=true"])
def test_a_slip_in_always200_claims_nothing(server, query):
    assert (
        server.call("PUT", f"/v1/claims/pay/o-1?{query}", b"{}", [("content-type", "application/json")]).status == 400
    )
    assert server.call("GET", "/v1/claims/pay/o-1").status == 404


def test_a_slip_in_a_filter_lists_nothing(server):
    answer = server.call("GET", "/v1/runs?stat=failed")
    assert (answer.status, answer.kind) == (400, "bad-query")
    assert "flow, state, key" in answer.json["next"]


def test_who_may_not_call_hears_of_no_parameter(server):
    server.token("admin")
    assert server.call("GET", "/v1/runs?stat=failed", host=("host", "example.com")).status == 401


def test_a_description_says_where_other_parameters_are_left_alone():
    for route in ROUTES:
        told = DESCRIBED[route.path][route.method.lower()].get("description", "")
        assert ("are ignored" in told) is route.ignores_unknown_query
