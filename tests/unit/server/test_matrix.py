"""Every route, for every kind of caller: whoever may not gets 401 or 403, never data. Made from the routes."""

import pytest

from twiceproof import Misuse
from twiceproof.server.auth import FRESH, POLICY, allows, require_policy
from twiceproof.server.routes import ROUTES
from twiceproof.server.routing import ApiRoute
from twiceproof.server.tokens import GRANTS, Principal, Scope, anonymous

GUARDED = [route for route in ROUTES if POLICY[route.method, route.path] not in (Scope.OPEN, Scope.PROVEN)]
REFUSALS = {401, 403}


def address(route):
    return "/".join("x" if segment.startswith("{") else segment for segment in route.path.split("/"))


def title(route):
    return f"{route.method} {route.path}"


def needed(route):
    scope = POLICY[route.method, route.path]
    return Scope.READ if scope is Scope.OPERATOR else scope


def test_every_route_has_a_rule_and_every_rule_a_route():
    assert {(route.method, route.path) for route in ROUTES} == set(POLICY)


def test_a_route_without_a_rule_keeps_the_server_down():
    with pytest.raises(Misuse, match="The access policy has no entry for DELETE /v1/everything"):
        require_policy([*ROUTES, ApiRoute("DELETE", "/v1/everything", "x", None)])


@pytest.mark.parametrize("scope", GRANTS)
def test_a_rule_lets_its_scope_and_admin_in_and_nobody_else(scope):
    let_in = {held for held in GRANTS if allows(scope, Principal("x", frozenset({held}), "acme"), "default")}
    assert let_in == {scope, Scope.ADMIN}
    assert not allows(scope, anonymous("default"), "default")


def test_names_of_routes_are_unique():
    assert len({route.name for route in ROUTES}) == len(ROUTES)


@pytest.mark.parametrize("route", GUARDED, ids=title)
def test_without_a_token_it_is_401(server, clock, route):
    server.token(Scope.ADMIN)
    clock.advance(FRESH)
    assert server.call(route.method, address(route)).status == 401


@pytest.mark.parametrize("scope", GRANTS)
@pytest.mark.parametrize("route", GUARDED, ids=title)
def test_a_token_opens_what_its_scope_says_and_nothing_else(server, route, scope):
    answer = server.call(route.method, address(route), b"{}", token=server.token(scope))
    allowed = scope in (Scope.ADMIN, needed(route))
    assert (answer.status in REFUSALS) == (not allowed), answer.status


@pytest.mark.parametrize("route", [r for r in ROUTES if POLICY[r.method, r.path] is Scope.PROVEN], ids=title)
def test_what_proves_itself_needs_no_token_and_takes_none_that_may_not(server, route):
    anonymous = server.call(route.method, address(route), b"{}", host=("host", "shop.example"))
    assert anonymous.json.get("type") != "urn:twiceproof:forbidden"
    reader = server.call(route.method, address(route), b"{}", token=server.token(Scope.READ))
    assert (reader.status, reader.kind) == (403, "forbidden")


@pytest.mark.parametrize("scope", GRANTS)
@pytest.mark.parametrize("route", GUARDED, ids=title)
def test_another_tenants_token_sees_nothing_of_ours(server, route, scope):
    """Something of each kind exists under the address that is asked for; none of it may show."""
    server.call("POST", "/hooks/shop", b'{"id":"canary-4711"}', [("x-secret", "s3cret")])
    answer = server.call(route.method, address(route), b"{}", token=server.token(scope, tenant="acme"))
    assert b"canary-4711" not in answer.body


def test_a_webhook_with_a_tenants_token_is_that_tenants(server):
    token = server.token(Scope.INGEST, tenant="acme")
    for given in ("", token):
        answer = server.call("POST", "/hooks/shop", b'{"id":"1"}', [("x-secret", "s3cret")], token=given)
        assert (answer.status, answer.json["state"]) == (200, "new")
    assert [run.tenant for run in server.app.of("acme").runs()] == ["acme"]
    assert [run.tenant for run in server.app.runs()] == ["default"]
