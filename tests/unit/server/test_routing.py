"""From an address to its route."""

import pytest

from twiceproof import Misuse
from twiceproof.server.routing import ApiRoute, Router, params_of


async def handle(call):
    raise NotImplementedError


def route(method, path):
    return ApiRoute(method, path, f"{method} {path}", handle)


ROUTES = (
    route("GET", "/v1/runs"),
    route("GET", "/v1/runs/{id}"),
    route("POST", "/v1/runs/{flow}"),
    route("PUT", "/v1/claims/{operation}/{key}"),
    route("POST", "/v1/claims/{operation}/{key}/complete"),
)


def found(method, path):
    hit = Router(ROUTES).find(path)
    if hit is None:
        return None
    route = hit[0].routes.get(method)
    return route and (route.path, params_of(route, hit[1]))


def test_each_method_names_its_own_parameters():
    assert found("GET", "/v1/runs/run_1") == ("/v1/runs/{id}", {"id": "run_1"})
    assert found("POST", "/v1/runs/ship") == ("/v1/runs/{flow}", {"flow": "ship"})


def test_a_slash_in_a_parameter_is_part_of_it_when_it_is_encoded():
    assert found("PUT", "/v1/claims/ship/a%2Fb") == (
        "/v1/claims/{operation}/{key}",
        {"operation": "ship", "key": "a/b"},
    )


def test_a_parameter_is_decoded_once():
    assert found("PUT", "/v1/claims/ship/a%252Fb")[1]["key"] == "a%2Fb"


def test_a_key_that_looks_like_an_act_is_a_key():
    assert found("PUT", "/v1/claims/ship/complete")[1]["key"] == "complete"


@pytest.mark.parametrize(
    "path", ["/", "", "/v1", "/v1/runs/", "/v1/runs/a/b", "//v1/runs", "/v1/claims//key", "/V1/runs"]
)
def test_what_is_not_exactly_an_address_is_none(path):
    assert found("GET", path) is None


def test_a_parameter_that_is_not_utf8_is_none():
    assert found("GET", "/v1/runs/%ff") == ("/v1/runs/{id}", None)


def test_a_route_that_is_declared_twice_is_refused():
    with pytest.raises(Misuse, match="declared twice"):
        Router([ROUTES[1], route("GET", "/v1/runs/{other}")])
