"""An app names its runs by short ids, and takes those, ids of older releases, and FLOW/KEY."""

from __future__ import annotations

import asyncio
import logging

import pytest

from twiceproof import App, Misuse, NotDone, StepFailed, Waiting
from twiceproof.claims.claim import claim_of, run_address, run_id, short_id
from twiceproof.flows.workers.log import RunFilter

SPACE = "default/buy/mail:ann@example.com"
NAMES = [short_id(SPACE), run_id(SPACE), "buy/mail:ann@example.com"]


@pytest.fixture
def app():
    with App("memory://") as made:
        yield made


@pytest.fixture
def buy(app):
    @app.step(repeat="never")
    def charge(who):
        raise NotDone("closed", final=True)

    @app.flow(key="mail:{who}")
    def buy(who):
        return charge(who)

    return buy


@pytest.mark.parametrize("name", NAMES)
def test_every_call_about_a_run_takes_every_name(app, buy, name):
    handle = buy.start("ann@example.com")
    assert handle.id == short_id(SPACE) and "ann" not in repr(handle)
    app.worker().run(until_idle=True)
    assert (app.attach(name).id, app.attach(name).state) == (handle.id, "failed")
    assert app.attach(name).key == "mail:ann@example.com"
    assert app.history(name).run.run == handle.id
    assert app.progress(name) == {"charge": {"failed": 1}}
    assert app.retry_run(name) == "queued"
    assert app.attach(name).cancel() == "queued"
    app.worker().run(until_idle=True)
    assert app.fork_run(name, key="mail:bob").run == short_id("default/buy/mail:bob")


@pytest.mark.parametrize("name", NAMES)
def test_on_an_event_loop_an_attached_handle_is_awaited(app, buy, name):
    buy.start("ann@example.com")

    async def look():
        handle = await app.attach(name)
        return handle.id, await handle.state, app.attach(name).state

    assert asyncio.run(look()) == (short_id(SPACE), "queued", "queued")


def test_an_unknown_id_is_refused_at_once_and_on_a_loop_when_it_is_awaited(app, buy):
    unknown = short_id("default/buy/none")
    with pytest.raises(Misuse, match="no such run here"):
        app.attach(unknown)

    async def look():
        handle = app.attach(unknown)
        with pytest.raises(Misuse, match="no such run here"):
            await handle
        return handle.id

    assert asyncio.run(look()) == unknown


def test_what_is_stored_refers_to_a_run_as_before(app, buy):
    """So that processes of an older release, which may work on it too, understand it."""
    buy.start("ann@example.com")
    record = app.store.read(run_address(SPACE)).block().record
    assert claim_of(record).run == run_id(SPACE)


def test_errors_and_log_lines_name_the_short_id(app, caplog):
    @app.step(repeat="never")
    def charge(who):
        logging.getLogger("shop").warning("charging")
        raise NotDone("closed", final=True)

    @app.flow(key="mail:{who}")
    def buy(who):
        try:
            return charge(who)
        except StepFailed as error:
            return [error.run, str(error)]

    caplog.handler.addFilter(RunFilter())
    run, text = buy("ann@example.com")
    assert run == short_id(SPACE) and f"runs show {run}" in text
    (line,) = [record for record in caplog.records if record.name == "shop"]
    assert (line.run, line.correlation) == (run, run)


def test_a_run_that_waits_for_another_is_woken_though_errors_name_the_short_id(app):
    @app.flow(key="inner:{n}")
    def inner(n):
        return app.approve("word", show=n).by

    @app.flow(key="outer:{n}")
    def outer(n):
        return inner(n)

    with pytest.raises(Waiting) as raised:
        outer(1)
    assert raised.value.run == short_id("default/outer/outer:1")
    (approval,) = app.approvals()
    app.decide(approval.id, approved=True, by="ann")
    app.worker().run(until_idle=True)
    assert app.attach("outer/outer:1").state == "done"
    assert outer(1) == "ann"
