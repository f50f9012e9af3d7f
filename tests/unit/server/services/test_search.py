"""What a person types is found: also what a key was made of, of every kind of flow."""

import pytest

from twiceproof import App, by
from twiceproof.operations import block
from twiceproof.server.services.search import find


@pytest.fixture
def app():
    with App("memory://") as made:

        @made.flow(key="order:{order}")
        def bill(order):
            return order

        @made.flow(key="order:{change[order]}", order=by(object="{change[order]}", version="{change[version]}"))
        def keep_address(change):
            return change

        @made.flow(key="{shop}:{order}:invoice")
        def invoice(shop, order):
            return order

        @made.once(key="ship:{order}")
        def ship(order):
            return order

        bill.start("21")
        bill.start("211")
        for version in (1, 2):
            keep_address.start({"order": 21, "version": version})
        invoice.start("de:north", "7")
        ship("21")
        yield made


def found(app, text):
    return sorted((hit.where, hit.name) for hit in block(find(app, text)))


def test_a_number_finds_every_key_that_was_made_of_it(app):
    assert found(app, "21") == [
        ("bill", "order:21"),
        ("keep_address", "order:21:1"),
        ("keep_address", "order:21:2"),
        ("ship", "ship:21"),
    ]


def test_the_first_of_several_fields_finds_what_begins_with_it(app):
    assert found(app, "de:north") == [("invoice", "de%3Anorth:7:invoice")]


def test_a_whole_key_is_found_alone(app):
    assert found(app, "order:211") == [("bill", "order:211")]


@pytest.mark.parametrize("text", ["nothing", " ", "a/b", "{order}", "x" * 1_100])
def test_what_no_key_can_be_finds_nothing(app, text):
    assert found(app, text) == []
