"""The description is made from the routes, and says neither less nor more."""

import pytest
from openapi_spec_validator import validate

from twiceproof.server.openapi.description import description
from twiceproof.server.policy import POLICY
from twiceproof.server.principal import Scope
from twiceproof.server.routes.table import ROUTES


@pytest.fixture(scope="module")
def described():
    return description(ROUTES)


def test_it_is_openapi_3_1(described):
    assert described["openapi"] == "3.1.0"
    validate(described)


def test_every_route_is_in_it_and_everything_in_it_is_a_route(described):
    in_it = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    assert in_it == {(route.method, route.path) for route in ROUTES}


def test_it_is_what_the_server_tells(desk, described):
    assert desk.call("GET", "/openapi.json").json == described


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_every_route_says_what_it_is_for_and_what_it_answers(described, route):
    operation = described["paths"][route.path][route.method.lower()]
    assert operation["summary"]
    assert any(status < "300" for status in operation["responses"])
    assert all(parameter["description"] for parameter in operation.get("parameters", []) if parameter["in"] == "path")
    scope = POLICY[route.method, route.path]
    assert ({"token": []} in operation["security"]) == (scope is not Scope.OPEN)
