"""`twiceproof hooks`: lists an app's webhooks, tries one out on a running server, and replays what was kept aside."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.contracts.sources.listener import Listener
from twiceproof import App
from twiceproof.cli.load import load_app
from twiceproof.cli.main import cli
from twiceproof.inbound.sources import find_source

SECRET = "a secret that nobody should see"
APP = """
from twiceproof import App, env
app = App("sqlite:///shop.db")
broken = {broken}

@app.flow(key="event:{{event[id]}}")
def take(event):
    return event["id"]

@app.webhook("stripe", secret=env("STRIPE_SECRET"), start=take)
def event_of(payload):
    if broken:
        raise KeyError("a bug")
    return payload

app.webhook("github", name="code", secret=env("NOT_SET"), start=take, keep="forever")
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory of one's own; the modules in it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STRIPE_SECRET", SECRET)
    monkeypatch.setenv("TWICEPROOF_STORE", "sqlite:///shop.db")
    monkeypatch.setattr(sys, "path", list(sys.path))
    write_app(broken=False)
    yield tmp_path
    forget()


def forget():
    """A command imports the app, and closes it; the next one must import it anew."""
    for name in [name for name in sys.modules if name.startswith("hookshop")]:
        del sys.modules[name]


def write_app(*, broken, module="hookshop"):
    Path(f"{module}.py").write_text(APP.format(broken=broken))


def hooks(*words, code=0):
    forget()
    result = CliRunner().invoke(cli, ["hooks", *words])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    assert SECRET not in result.output
    return result


def hooks_json(*words, code=0):
    return json.loads(hooks(*words, "--json", code=code).stdout)


@pytest.fixture
def listener(here):
    app = App(f"sqlite:///{Path.cwd()}/shop.db")

    @app.flow(key=lambda payload: str(payload)[:500])
    def take(payload):
        return 1

    for source in ("stripe", "event_grid", "square", "twilio"):
        app.webhook(source, secret=SECRET, start=take)
    app.webhook("generic", secret=SECRET, start=take, fingerprint=("a", "b"), signature="X-Sig")
    listener = Listener(app)
    yield listener
    listener.close()
    app.close()


# -- list -------------------------------------------------------------------------------------------


def test_the_webhooks_of_an_app_are_listed_without_their_secrets(here):
    told = hooks("list", "hookshop:app", code=1).stdout
    assert "/hooks/stripe" in told and "/hooks/code" in told
    assert "MISSING" in told and "ever" in told
    assert "code has no secret" in told


def test_a_listed_webhook_has_a_stable_shape(here):
    stripe, code = hooks_json("list", "hookshop:app", code=1)["hooks"]
    assert stripe == {
        "name": "stripe",
        "path": "/hooks/stripe",
        "source": "stripe",
        "flow": "take",
        "signed": True,
        "deadline": 10.0,
        "retry_window": 259200.0,
        "keep": 2592000.0,
        "kept_long_enough": True,
        "secret_set": True,
    }
    assert (code["secret_set"], code["keep"], code["kept_long_enough"]) == (False, None, True)


def test_with_all_secrets_set_the_answer_is_positive(here, monkeypatch):
    monkeypatch.setenv("NOT_SET", "set now")
    assert "set now" not in hooks("list", "hookshop:app").stdout


def test_an_app_without_webhooks_is_told_how_to_declare_one(here):
    Path("hookshop_bare.py").write_text('from twiceproof import App\napp = App("sqlite:///shop.db")\n')
    assert "app.webhook(" in hooks("list", "hookshop_bare:app").stdout


# -- test -------------------------------------------------------------------------------------------


def sample(listener, name, *words, **options):
    return hooks("test", name, "--url", listener.url(name), "--secret-env", "STRIPE_SECRET", *words, **options)


@pytest.mark.parametrize("name", ["stripe", "event_grid", "square", "twilio"])
def test_a_sample_is_believed_by_a_running_server_and_is_then_a_duplicate(listener, name):
    assert "new" in sample(listener, name).stdout
    assert "duplicate" in sample(listener, name).stdout


def test_a_test_has_a_stable_shape(listener):
    told = json.loads(sample(listener, "stripe", "--json").stdout)["test"]
    assert set(told) == {"source", "url", "sent_bytes", "status", "seconds", "response"}
    assert (told["source"], told["status"], json.loads(told["response"])["state"]) == ("stripe", 200, "new")


def test_an_event_of_ones_own_is_sent(listener, here):
    for number in (1, 2):
        (here / "order.json").write_text(json.dumps({"data": {"object": {"order": number}}}))
        assert "new" in sample(listener, "stripe", "--event", "order.json").stdout


def test_a_source_is_given_its_options(listener):
    words = ("--option", "fingerprint=a,b", "--option", "signature=X-Sig")
    assert "new" in sample(listener, "generic", *words).stdout


def test_a_secret_in_the_url_is_sent_there(listener):
    sample(listener, "event_grid")
    assert listener.paths[0].startswith("/hooks/event_grid?code=")


def test_a_sample_that_is_not_believed_tells_why(listener, monkeypatch):
    monkeypatch.setenv("STRIPE_SECRET", "another")
    told = sample(listener, "stripe", code=1).stdout
    assert "401" in told and "STRIPE_SECRET" in told


def test_a_sample_that_is_kept_aside_is_a_negative_answer_with_the_next_move(listener, here):
    (here / "event.json").write_text('{"id": "evt_1", "a": 1}')
    assert "hooks dead-letters" not in sample(listener, "stripe", "--event", "event.json").stdout
    (here / "event.json").write_text('{"id": "evt_1", "a": 2}')  # the same id with other contents
    assert "twiceproof hooks dead-letters" in sample(listener, "stripe", "--event", "event.json", code=1).stdout


def test_a_secret_that_is_not_set_is_asked_for(here, monkeypatch):
    monkeypatch.delenv("STRIPE_SECRET")
    told = hooks("test", "stripe", "--url", "http://127.0.0.1:1/", "--secret-env", "STRIPE_SECRET", code=2)
    assert "set it to the secret" in told.stderr


def test_where_no_server_answers_the_next_move_is_told(here):
    words = ("test", "stripe", "--url", "http://127.0.0.1:1/hooks/stripe", "--secret-env", "STRIPE_SECRET")
    assert "twiceproof serve" in hooks(*words, code=1).stderr
    assert hooks_json(*words, code=1)["error"]["type"] == "NoAnswer"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("stirpe", "--url", "http://127.0.0.1:1/"), "There is no source"),
        (("stripe", "--url", "ftp://127.0.0.1/"), "not an HTTP URL"),
        (("stripe", "--url", "http://[::1/"), "not an HTTP URL"),
        (("stripe", "--url", "http://127.0.0.1:99999/"), "not an HTTP URL"),
        (("stripe", "--url", "http://127.0.0.1:1/hooks/straße"), "not an HTTP URL"),
        (("stripe", "--url", "http://127.0.0.1:1/hooks/a b"), "not an HTTP URL"),
        (("stripe", "--url", f"http://{'a' * 64}.test/"), "not an HTTP URL"),
        (("stripe", "--url", "http://127.0.0.1:1/", "--event", "nowhere.json"), "cannot be read"),
        (("stripe", "--url", "http://127.0.0.1:1/", "--event", "spoilt.json"), "correct the file"),
        (("stripe", "--url", "http://127.0.0.1:1/", "--option", "x"), "NAME=VALUE"),
        (("stripe", "--url", "http://127.0.0.1:1/", "--option", "x=1"), "takes no options"),
        (("generic", "--url", "http://127.0.0.1:1/", "--option", "x=1"), "generic was given x=;"),
        (("paypal", "--url", "http://127.0.0.1:1/"), "certificate="),
    ],
)
def test_what_cannot_be_sent_is_refused_with_the_next_move(here, words, told):
    (here / "spoilt.json").write_text('{"a":1,"a":2}')
    assert told in hooks("test", *words, "--secret-env", "STRIPE_SECRET", code=2).stderr


# -- letters and replay -----------------------------------------------------------------------------


@pytest.fixture
def letter(here, monkeypatch):
    """A delivery that a broken app kept aside."""
    write_app(broken=True, module="hookshop_broken")
    from importlib import import_module

    from twiceproof.inbound.sources import find_source

    monkeypatch.syspath_prepend(str(here))
    app = import_module("hookshop_broken").app
    sent = find_source("stripe").sample(SECRET, app.clock.now())
    assert b"poison" in app.receive("stripe", sent.body, list(sent.headers.items())).body
    app.close()
    return hooks_json("dead-letters")["dead_letters"][0]["id"]


def test_what_was_kept_aside_is_listed_with_its_reason(letter):
    assert "a bug" in hooks("dead-letters").stdout
    (shape,) = hooks_json("dead-letters", "--hook", "stripe")["dead_letters"]
    assert set(shape) == {"id", "hook", "events", "reason", "received_at", "size", "digest", "can_be_replayed"}
    assert (shape["id"], shape["hook"], shape["can_be_replayed"]) == (letter, "stripe", True)
    assert hooks_json("dead-letters", "--hook", "code") == {"dead_letters": [], "more": False}


def test_a_letter_is_replayed_once_its_cause_is_gone(letter):
    (told,) = hooks_json("replay", "hookshop:app", letter)["replayed"]
    assert (told["dead_letter"], told["outcome"]) == (letter, "new") and told["run"]
    assert "No dead letters" in hooks("dead-letters").stdout


def test_a_letter_that_still_cannot_be_taken_in_is_kept(letter):
    (told,) = hooks_json("replay", "hookshop_broken:app", letter, code=1)["replayed"]
    assert told["outcome"] == "poison" and "a bug" in told["reason"]
    assert "a bug" in hooks("replay", "hookshop_broken:app", letter, code=1).stdout
    assert hooks_json("dead-letters")["dead_letters"][0]["id"] == letter


def test_all_letters_are_replayed_together(letter):
    assert "new" in hooks("replay", "hookshop:app", "--all").stdout
    assert "No dead letters" in hooks("replay", "hookshop:app", "--all", "--hook", "stripe").stdout


def test_an_unknown_letter_does_not_stop_the_others(letter):
    told = hooks_json("replay", "hookshop:app", "ltr_unknown", letter, code=1)["replayed"]
    assert [one["outcome"] for one in told] == ["refused", "new"]
    assert "hooks dead-letters" in told[0]["reason"]


def test_letters_are_replayed_where_the_app_keeps_them_and_nowhere_else(letter):
    """A ledger that was named would be passed over, and the app's own be written to."""
    forget()
    for words in (
        ["--store", "other", "hooks", "replay", "hookshop:app", "--all"],
        ["hooks", "replay", "hookshop:app", "--all", "--store", "other"],
    ):
        told = CliRunner().invoke(cli, words)
        assert told.exit_code == 2 and "The app names its own store" in told.output
    assert hooks_json("dead-letters")["dead_letters"][0]["id"] == letter


def test_which_letters_must_be_said(here):
    assert "--all" in hooks("replay", "hookshop:app", code=2).stderr
    assert "--all" in hooks("replay", "hookshop:app", "ltr_1", "--all", code=2).stderr


@pytest.fixture
def acmes(here):
    """A letter of another tenant, kept by a server that serves several."""
    write_app(broken=True, module="hookshop_broken")
    sent = find_source("stripe").sample(SECRET, time.time())
    forget()
    with load_app("hookshop_broken:app") as app:
        app.of("acme").receive("stripe", sent.body, sent.headers.items())
    return hooks_json("dead-letters", "--tenant", "acme")["dead_letters"][0]["id"]


@pytest.mark.parametrize("before", [True, False])
def test_a_tenants_letter_is_replayed_for_that_tenant(acmes, before):
    told = replayed(["hookshop:app", acmes], ["--tenant", "acme"], before=before)
    assert [one["outcome"] for one in told] == ["new"]
    assert not hooks_json("dead-letters", "--tenant", "acme")["dead_letters"]
    with App(f"sqlite:///{Path.cwd()}/shop.db") as app:
        assert [run.tenant for run in app.of("acme").runs()] == ["acme"] and not app.runs()


def test_all_letters_are_those_of_the_tenant_that_is_named(acmes):
    assert replayed(["hookshop:app", "--all"], []) == []
    assert [one["dead_letter"] for one in replayed(["hookshop:app", "--all"], ["--tenant", "acme"])] == [acmes]


def test_a_ledger_that_is_not_the_apps_own_is_refused(letter):
    other, command = ["--store", "sqlite:///other.db"], ["hooks", "replay"]
    for words in ([*other, *command], [*command, *other]):
        forget()
        result = CliRunner().invoke(cli, [*words, "hookshop:app", letter])
        assert result.exit_code == 2 and "TWICEPROOF_STORE" in result.stderr


def replayed(words, tenant, *, before=False):
    forget()
    line = [*tenant, "hooks", "replay", *words] if before else ["hooks", "replay", *words, *tenant]
    return json.loads(CliRunner().invoke(cli, ["--json", *line]).stdout)["replayed"]
