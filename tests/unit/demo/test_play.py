"""The demo's count would notice: every extra, every missing, every old one, of one program and not of the other."""

from __future__ import annotations

import pytest

from twiceproof.demo.play import count, invoice_of, large_orders_billed, was_mailed
from twiceproof.demo.processes import EffectLog
from twiceproof.demo.scenario import DemoPlan, Order
from twiceproof.demo.services import ADDRESSES, INVOICES, MAILS

PLAN = DemoPlan(1, [Order(1, 70), Order(2, 30, addresses=2), Order(3, 6_000)], [], {}, {})


class Outside:
    def __init__(self, place):
        self.place = place
        self.books = {name: EffectLog(place / name) for name in (INVOICES, ADDRESSES, MAILS)}

    def invoice(self, order, side="twiceproof"):
        total = PLAN.orders[order - 1].total
        self.books[INVOICES].write(side=side, order=order, total=total, invoice=f"INV-{order}")

    def mail(self, order, side="twiceproof"):
        self.books[MAILS].write(side=side, order=order, to="", subject="")

    def address(self, order, version, side="twiceproof"):
        self.books[ADDRESSES].write(side=side, order=order, version=version, address="")

    def count(self, side="twiceproof"):
        return count(self.place, PLAN, side)


@pytest.fixture
def outside(tmp_path):
    outside = Outside(tmp_path)
    yield outside
    for book in outside.books.values():
        book.close()


@pytest.fixture
def done(outside):
    for order in (1, 2, 3):
        outside.invoice(order)
        outside.mail(order)
    outside.address(2, 1)
    outside.address(2, 2)
    return outside


def test_everything_once_is_flawless(done):
    assert done.count().flawless


def test_a_second_invoice_is_noticed_with_its_money(done):
    done.invoice(1)
    done.invoice(1)
    found = done.count()
    assert (found.invoices, found.duplicate_invoices, found.overbilled_eur, found.flawless) == (5, 2, 140, False)


def test_a_second_mail_is_noticed(done):
    done.mail(3)
    found = done.count()
    assert (found.mails, found.duplicate_mails, found.flawless) == (4, 1, False)


def test_what_is_missing_is_noticed(outside):
    outside.invoice(1)
    outside.invoice(1)
    outside.mail(2)
    found = outside.count()
    assert (found.missing_invoices, found.missing_mails, found.stale_addresses) == (2, 2, 1)
    assert found.overbilled_eur == 70
    assert not found.flawless


def test_an_older_address_written_last_is_noticed(done):
    done.address(2, 1)
    found = done.count()
    assert (found.stale_addresses, found.flawless) == (1, False)


def test_each_program_has_its_own_count(done):
    done.invoice(1, side="naive")
    assert done.count().flawless
    assert done.count("naive").invoices == 1


def test_a_large_order_that_was_billed_is_seen(outside):
    outside.invoice(1)
    assert large_orders_billed(outside.place, "twiceproof") == 0
    outside.invoice(3)
    assert large_orders_billed(outside.place, "twiceproof") == 1
    assert large_orders_billed(outside.place, "naive") == 0


def test_a_person_can_look_into_the_books(done):
    assert was_mailed(done.place, "twiceproof", 1)
    assert not was_mailed(done.place, "naive", 1)
    assert invoice_of(done.place, "twiceproof", 2) == "INV-2"
    assert invoice_of(done.place, "naive", 2) is None
