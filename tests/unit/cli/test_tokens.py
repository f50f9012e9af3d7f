"""`twiceproof tokens` and what `twiceproof serve` refuses."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from twiceproof.cli.main import cli


@pytest.fixture
def run(tmp_path):
    url = f"sqlite:///{tmp_path}/ledger.db"

    def invoke(*words, code=0):
        done = CliRunner().invoke(cli, ["--store", url, *words])
        assert done.exit_code == code, done.output
        return done

    return invoke


def test_a_token_is_shown_once_and_never_again(run):
    made = json.loads(run("tokens", "create", "n8n", "--scope", "run", "--scope", "read", "--json").stdout)
    assert made["token"].startswith("tp_")
    assert made["scopes"] == ["run", "read"]
    listed = run("tokens", "list", "--json").stdout
    assert made["token"] not in listed
    [token] = json.loads(listed)["tokens"]
    assert (token["id"], token["state"], token["tenant"]) == (made["id"], "live", "default")


def test_a_token_may_be_made_before_there_is_a_ledger(run):
    assert "Save the token now" in run("tokens", "create", "ops", "--scope", "admin").stdout


def test_a_token_can_be_revoked_by_its_name_once(run):
    run("tokens", "create", "n8n", "--scope", "run")
    assert json.loads(run("tokens", "revoke", "n8n", "--json").stdout)["state"] == "revoked"
    assert "no live token" in run("tokens", "revoke", "n8n", code=2).stderr


def test_tokens_are_listed_by_tenant_when_one_is_named(run):
    run("tokens", "create", "a", "--scope", "run")
    run("tokens", "create", "b", "--scope", "run", "--tenant", "acme", "--expires", "90d")
    names = [
        token["name"] for token in json.loads(run("tokens", "list", "--tenant", "acme", "--json").stdout)["tokens"]
    ]
    assert names == ["b"]
    text = run("tokens", "list").stdout
    assert "acme" in text
    assert "never" in text


@pytest.mark.parametrize("scope", ["operator", "open", "READ", "everything"])
def test_a_scope_that_is_no_grant_is_refused(run, scope):
    run("tokens", "create", "x", "--scope", scope, code=2)


def test_a_token_without_a_scope_is_refused(run):
    run("tokens", "create", "x", code=2)


def test_no_tokens_says_what_that_means(run):
    run("tokens", "create", "x", "--scope", "run", "--tenant", "acme")
    assert "No tokens" in run("tokens", "list", "--tenant", "other").stdout


def test_a_server_takes_no_other_store_than_its_apps(run):
    assert "The app names its own store" in run("serve", "shop:app", code=2).stderr


def test_a_name_that_several_tokens_have_needs_an_id(run):
    for _ in range(2):
        run("tokens", "create", "n8n", "--scope", "run")
    assert "Several live tokens" in run("tokens", "revoke", "n8n", code=2).stderr


def test_a_token_goes_into_no_ledger_that_nobody_named(tmp_path, monkeypatch):
    """It would be made beside the server's, and the server would stay as open as it was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TWICEPROOF_STORE", raising=False)
    make = ["tokens", "create", "ops", "--scope", "admin"]
    refused = CliRunner().invoke(cli, make)
    assert refused.exit_code == 3 and "--store" in refused.stderr
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("TWICEPROOF_STORE", "sqlite:///shop.db")
    assert CliRunner().invoke(cli, make).exit_code == 0


def test_a_link_to_log_in_names_its_token_and_is_new_each_time(run):
    run("tokens", "create", "ann", "--scope", "read")
    links = [run("open", "ann", "--url", "https://shop.example/").stdout.strip() for _ in range(2)]
    assert all(link.startswith("https://shop.example/login?link=") for link in links) and links[0] != links[1]
    assert json.loads(run("open", "ann", "--json").stdout)["seconds"] == 60.0
    assert "Name the token" in run("open", code=2).output
    assert "There is no live token" in run("open", "bob", code=2).output


def test_a_token_that_was_revoked_logs_in_nobody(run):
    run("tokens", "create", "ann", "--scope", "read")
    run("tokens", "revoke", "ann")
    assert "There is no live token" in run("open", "ann", code=2).output
