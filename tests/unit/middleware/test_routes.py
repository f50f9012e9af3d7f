"""What a route may say."""

from __future__ import annotations

import pytest
from fastapi import FastAPI

from twiceproof import Misuse
from twiceproof.middleware import IdempotencyKey, Route, WsgiIdempotencyKey
from twiceproof.middleware.routes import RouteRule, Rules

WRONG = [
    ({"path": "pay"}, "is not a path"),
    ({"methods": ("GET",)}, "guards GET"),
    ({"methods": ()}, "guards no method"),
    ({"methods": "POST"}, "is a string, not a list"),
    ({"keeps": "some"}, "keeps='some' is not known"),
    ({"repeat": "often"}, "repeat='often' is not known"),
    ({"busy": 404}, "busy=404 is not known"),
    ({"clean": (404,)}, "from 500 to 599"),
    ({"name": "a/b"}, "is not a name"),
    ({"largest_answer": 10**9}, "largest_answer"),
    ({"largest_body": 0}, "refuses every body"),
]


@pytest.mark.parametrize(("words", "reason"), WRONG)
def test_a_route_that_means_nothing_is_refused_when_it_is_made(words, reason):
    with pytest.raises(Misuse, match=reason):
        Route(**{"path": "/pay", **words})


@pytest.mark.parametrize("words", [{"lease": 0}, {"keep": "soon"}, {"wait": "-1s"}, {"keep_answer": 0}])
def test_durations_are_checked_when_the_middleware_is_made(words):
    with pytest.raises(Misuse):
        Rules([Route("/pay", **words)])


def test_no_routes_at_all_guard_nothing_and_are_refused():
    with pytest.raises(Misuse, match="guards nothing"):
        Rules([])


@pytest.mark.parametrize("one", ["/pay", Route("/pay")])
def test_one_route_that_is_no_list_is_refused_and_a_list_of_it_is_taken(one):
    with pytest.raises(Misuse, match="is a single route, not a list"):
        Rules(one)
    assert [rule.path for rule in Rules([one]).all] == ["/pay"]


@pytest.mark.parametrize("middleware", [IdempotencyKey, WsgiIdempotencyKey])
def test_the_web_app_in_place_of_the_ledger_is_refused(middleware):
    api = FastAPI()
    with pytest.raises(Misuse, match=r"app= must be a twiceproof\.App, but this is a FastAPI; pass"):
        middleware(api, app=api)


FITS = [
    ("/pay", "/pay", True),
    ("/pay", "/pay/", True),
    ("/pay", "//pay", True),
    ("/pay/", "/pay", True),
    ("/pay", "/", False),
    ("/", "/pay", False),
    ("/pay", "/payments", False),
    ("/orders/{order}", "/orders/7", True),
    ("/orders/{order}", "/orders/7/pay", False),
    ("/orders/{order}", "/orders/", False),
    ("/orders/{order:int}/pay", "/orders/7/pay", True),
    ("/orders/{order}/pay", "/orders/7//pay/", True),
    ("/orders/{order}/pay", "/orders//pay", False),
    ("/orders/<int:order>/pay", "/orders/7/pay", True),
    ("/files/{rest:path}", "/files/a/b/c", True),
    ("/files/<path:rest>", "/files/a/b/c", True),
    ("/a.c", "/abc", False),
    ("/a/{b}.json", "/a/7.json", True),
    ("/a/{b}", "/a/7\n", True),
]


@pytest.mark.parametrize(("route", "path", "fits"), FITS)
def test_which_paths_a_route_fits(route, path, fits):
    assert (Rules([route]).find("POST", path) is not None) == fits


def test_the_first_route_that_fits_counts():
    rules = Rules([Route("/pay", methods=("POST",), name="first"), Route("/{rest:path}", name="second")])
    assert rules.find("POST", "/pay").route.name == "first"
    assert rules.find("PATCH", "/pay").route.name == "second"
    assert rules.find("GET", "/pay") is None


def test_a_key_belongs_to_the_template_and_in_a_family_to_the_address():
    assert RouteRule(Route("/orders/{order}")).scope_path("/orders/7") == "/orders/{order}"
    assert RouteRule(Route("/{rest:path}")).scope_path("/orders/7") == "/orders/7"
    assert RouteRule(Route()).scope_path("/orders/7") == "/orders/7"


def test_an_address_with_slashes_too_many_is_guarded_and_has_keys_of_its_own():
    """Some frameworks serve it, others redirect: the answer to one spelling must not be that to the other."""
    assert RouteRule(Route("/pay")).scope_path("/pay/") == "/pay/"
    assert RouteRule(Route("/orders/{order}")).scope_path("/orders/7/") == "/orders/7/"


def test_a_route_that_fits_exactly_counts_before_one_that_fits_apart_from_slashes():
    rules = Rules([Route("/pay", name="first"), Route("/pay/", name="second")])
    assert [rules.find("POST", path).route.name for path in ("/pay", "/pay/", "//pay")] == ["first", "second", "first"]
