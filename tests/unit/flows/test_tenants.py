"""Tenants share an app's flows and nothing else."""

import hmac

import pytest

from twiceproof import App, Misuse
from twiceproof.flows.runtime import note_tenant
from twiceproof.operations import block
from twiceproof.prove.clocks import ManualClock


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def app(clock):
    with App("memory://", clock=clock) as made:
        yield made


@pytest.fixture
def seen():
    return []


@pytest.fixture
def ship(app, seen):
    @app.flow(key="order:{order}")
    def ship(order):
        seen.append(order)
        return f"shipped {order}"

    return ship


def start(app, *args):
    return block(app.flows["ship"].start(args, {}))


def test_two_tenants_with_one_key_have_two_runs(app, ship, seen):
    for view in (app, app.of("acme"), app.of("acme")):
        start(view, "17")
    app.worker().run(until_idle=True)
    assert seen == ["17", "17"]
    assert [run.tenant for run in app.runs()] == ["default"]
    assert [run.tenant for run in app.of("acme").runs()] == ["acme"]


def test_a_webhook_starts_runs_of_the_tenant_that_receives_it(app, ship):
    @app.webhook("generic", id="id", signature="x-signature", secret="s3cret", name="post", start=ship)
    def order_of(event):
        return event["id"]

    body = b'{"id": "17"}'
    signed = hmac.new(b"s3cret", body, "sha256").hexdigest()
    for view in (app, app.of("acme"), app.of("acme")):
        reply = view.receive("post", body, [("x-signature", signed), ("content-type", "application/json")])
        assert reply.status == 200, reply
    assert [run.tenant for run in app.runs()] == ["default"]
    assert [run.tenant for run in app.of("acme").runs()] == ["acme"]


def test_a_webhook_is_declared_for_all_tenants(app, ship):
    with pytest.raises(Misuse, match="github cannot be declared for one tenant"):
        app.of("acme").webhook("github", secret="s3cret", start=ship)
    assert not app.hooks


def test_a_tenants_run_is_not_found_by_another(app, ship):
    run = start(app.of("acme"), "17").id
    assert app.of("acme").history(run).run.run == run
    with pytest.raises(Misuse, match="no such run"):
        app.history(run)
    with pytest.raises(Misuse, match="no such run"):
        app.of("other").attach(run)


def test_a_worker_serves_the_tenants_that_are_written_down(app, clock, ship, seen):
    """Another process started the run: this one has never heard of the tenant."""
    worker = app.worker()
    worker.run(until_idle=True)
    with App(app.store, tenant="elsewhere") as other:
        other.flow(key="order:{order}", name="ship")(lambda order: None).start("17")
        app.worker().run(until_idle=True)
        assert seen == []
        block(note_tenant(app.store, "elsewhere"))
        clock.advance(6)
        app.worker().run(until_idle=True)
        assert seen == ["17"]


def test_what_a_run_starts_is_its_tenants_too(app, ship, seen):
    @app.flow(key="batch:{name}")
    def batch(name):
        return ship(name)

    block(app.of("acme").flows["batch"].start(("a",), {}))
    app.worker().run(until_idle=True)
    assert seen == ["a"]
    assert {run.flow for run in app.of("acme").runs()} == {"batch", "ship"}
    assert app.runs() == []


def test_what_a_run_guards_is_its_tenants_too(app, seen):
    @app.once(key="mail:{to}")
    def mail(to):
        seen.append(to)
        return len(seen)

    @app.flow(key="greet:{to}")
    def greet(to):
        with app.claim("note", to):
            pass
        return mail(to)

    assert greet("ann") == 1
    block(app.of("acme").flows["greet"].start(("ann",), {}))
    app.worker().run(until_idle=True)
    assert app.of("acme").runs()[0].state == "done"
    assert seen == ["ann", "ann"]


def test_a_view_is_made_once_and_shares_the_store(app):
    assert app.of("acme") is app.of("acme")
    assert app.of("acme").store is app.store
    assert app.of("default") is app


def test_nothing_is_declared_for_one_tenant_alone(app):
    with pytest.raises(Misuse, match="declare it on the app itself"):
        app.of("acme").flow(key="x", name="ship")(lambda: None)


def test_a_draining_process_drains_for_every_tenant(app):
    view = app.of("acme")
    app.runtime.draining = True
    assert view.runtime.draining
    view.runtime.draining = False
    assert not app.runtime.draining


@pytest.mark.parametrize("name", ["", "a/b", "~tokens", "ä"])
def test_a_name_that_could_pose_as_another_space_is_refused(app, name):
    with pytest.raises(Misuse, match="is not a name"):
        app.of(name)
