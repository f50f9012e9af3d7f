"""How commands fail: exit codes, one line on stderr, one document on stdout, nothing made by looking."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys

import pytest
from click.testing import CliRunner

from twiceproof import errors
from twiceproof.cli import claims as claims_list
from twiceproof.cli.main import cli
from twiceproof.cli.output import exit_code
from twiceproof.stores import open as ledger_module

READS = [("claims", "list"), ("claims", "show", "ship", "k"), ("claims", "sweep")]


@pytest.mark.parametrize("words", READS)
def test_looking_makes_no_ledger(run, tmp_path, words):
    error = run(*words, store="sqlite:///absent.db", code=3).stderr
    assert error.startswith("Error: There is no ledger at absent.db; ")
    assert "TWICEPROOF_STORE" in error
    assert not (tmp_path / "absent.db").exists()


def test_a_database_of_something_else_is_left_as_it_is(run, tmp_path):
    with sqlite3.connect(tmp_path / "other.db") as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    before = (tmp_path / "other.db").read_bytes()
    assert "not a twiceproof ledger" in run("claims", "list", store="sqlite:///other.db", code=3).stderr
    assert (tmp_path / "other.db").read_bytes() == before


def test_the_environment_points_to_the_ledger_and_the_option_wins(run, ledger):
    run("claims", "list", store=None, env={"TWICEPROOF_STORE": ledger.url})
    run("claims", "list", env={"TWICEPROOF_STORE": "sqlite:///absent.db"})
    run("claims", "list", store=None, code=3)


def test_the_environment_names_the_tenant_and_the_option_wins(run_json, ledger):
    ledger.hold("theirs", tenant="acme")
    acme = {"TWICEPROOF_TENANT": "acme"}
    assert len(run_json("claims", "list", env=acme)["claims"]) == 1
    assert len(run_json("claims", "list", "--tenant", "default", env=acme)["claims"]) == 0


@pytest.mark.parametrize(
    "url", ["memory://", "oracle://db/app", "nonsense", "sqlite://relative.db", "postgresql://[bad"]
)
def test_a_url_that_cannot_be_a_ledger_is_refused(run, url):
    error = run("claims", "list", store=url, code=2).stderr
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [("claims", "show", "ship", " "), ("claims", "show", "a/b", "k"), ("--tenant", "a/b", "claims", "list")],
)
def test_a_name_or_key_that_cannot_be_is_refused(run, words):
    run(*words, code=2)


def test_an_error_is_one_line_and_with_json_also_a_document(run):
    plain = run("claims", "show", "ship", "k", code=1)
    assert (plain.stdout, plain.stderr.count("\n")) == ("", 1)
    both = run("claims", "show", "ship", "k", "--json", code=1)
    assert both.stderr == plain.stderr
    error = json.loads(both.stdout)["error"]
    assert set(error) == {"type", "message", "exit_code"}
    assert (error["type"], error["exit_code"]) == ("NotFound", 1)


@pytest.mark.parametrize(
    "words",
    [("claims", "show"), ("claims", "list", "--limit", "x"), ("claims", "list", "--nope"), ("nope",), ("--nope",)],
)
def test_wrong_use_is_exit_code_2_and_with_json_also_a_document(run, words):
    run(*words, code=2)
    result = run("--json", *words, code=2)
    assert json.loads(result.stdout)["error"]["type"] == "Usage"
    assert result.stderr


@pytest.mark.parametrize("where", ["before", "after"])
def test_json_may_stand_anywhere(run, where):
    words = ("--json", "claims", "list") if where == "before" else ("claims", "list", "--json")
    assert json.loads(run(*words).stdout) == {"claims": [], "after": None, "before": None, "newer": None}


def test_an_unexpected_error_is_not_swallowed(run, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(claims_list, "list_claims", broken)
    with pytest.raises(ZeroDivisionError):
        run("claims", "list")


def test_an_interrupt_is_exit_code_130(run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(claims_list, "list_claims", interrupted)
    run("claims", "list", code=130)


@pytest.mark.parametrize("words", [("version",), ("version", "--json")])
def test_an_answer_that_nobody_reads_is_no_negative_answer_and_no_traceback(words):
    gone, out = os.pipe()
    os.close(gone)
    told = subprocess.run([sys.executable, "-m", "twiceproof.cli.main", *words], stdout=out, stderr=subprocess.PIPE)
    os.close(out)
    assert (told.returncode, told.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("Misuse", 2),
        ("KeyRefused", 2),
        ("StoreUnsafe", 2),
        ("BadWrite", 2),
        ("StoreUnavailable", 3),
        ("StoreFull", 3),
        ("SchemaMismatch", 3),
        ("StoreError", 3),
    ],
)
def test_errors_have_their_exit_codes(error, code):
    assert exit_code(getattr(errors, error)("x")) == code


# -- passwords --------------------------------------------------------------------------------------

SECRET = "postgresql://ann:s3cret@127.0.0.1:1/app?sslpassword=t0ken"


def refuse_to_open(monkeypatch):
    def open_store(url, **_):
        raise errors.StoreUnavailable(f"cannot reach {url}: password=s3cret")

    monkeypatch.setattr(ledger_module, "open_store", open_store)


@pytest.mark.parametrize("words", [("claims", "list"), ("claims", "list", "--json")])
def test_an_error_never_shows_the_password(run, monkeypatch, words):
    refuse_to_open(monkeypatch)
    result = run(*words, store=SECRET, code=3)
    assert "s3cret" not in result.output
    assert "t0ken" not in result.output


def test_a_password_on_the_command_line_is_warned_about(run, monkeypatch):
    refuse_to_open(monkeypatch)
    assert "Warning" in run("claims", "list", store=SECRET, code=3).stderr
    assert "Warning" not in run("claims", "list", store=None, env={"TWICEPROOF_STORE": SECRET}, code=3).stderr


def test_the_url_can_be_read_from_a_private_file(run, ledger, tmp_path):
    kept = tmp_path / "store.url"
    kept.write_text(ledger.url + "\n")
    kept.chmod(0o640)
    assert "chmod 600" in run("claims", "list", store="@store.url", code=2).stderr
    kept.chmod(0o600)
    run("claims", "list", store="@store.url")
    run("claims", "list", store="@nowhere.url", code=2)


@pytest.mark.parametrize(
    ("held", "said"), [(b"", "store.url is empty"), (b" \n", "store.url is empty"), (b"\xff\xfe", "is not text")]
)
def test_a_private_file_that_holds_no_url_does_not_lead_to_another_ledger(run, ledger, tmp_path, held, said):
    """The environment names a ledger, too: a person who named one of their own would settle claims in that."""
    kept = tmp_path / "store.url"
    kept.write_bytes(held)
    kept.chmod(0o600)
    told = run("claims", "list", store="@store.url", env={"TWICEPROOF_STORE": ledger.url}, code=2)
    assert said in told.stderr and "Traceback" not in told.stderr


@pytest.mark.parametrize("option", ["--store", "--tenant"])
def test_an_option_that_a_script_left_empty_does_not_lead_to_another_ledger(run, ledger, option):
    env = {"TWICEPROOF_STORE": ledger.url}
    for words in ((option, "", "claims", "list"), ("claims", "list", option, "")):
        assert f"{option}: the value is empty" in run(*words, store=None, env=env, code=2).stderr


def test_a_suggested_command_never_holds_the_password(run, run_json, ledger, monkeypatch):
    """The ledger is opened all the same: only the URL's form matters here."""
    from twiceproof.stores.open import open_store

    monkeypatch.setattr(ledger_module, "open_store", lambda url, **_: open_store(ledger.url))
    ledger.fill()
    answer = run("claims", "show", "ship", "order:timeout", store=SECRET)
    assert "s3cret" not in answer.output
    assert "twiceproof claims settle" in answer.stdout


@pytest.mark.parametrize(
    "words", [("show",), ("release", "--yes"), ("settle", "--abandon")], ids=lambda words: words[0]
)
def test_what_is_not_there_is_looked_for_in_the_same_ledger(run, ledger, words):
    """Without its address the next move would list the claims of another one."""
    said = run("claims", *words, "ship", "order:none", code=1).stderr
    assert f"twiceproof --store {ledger.url} claims list --state all" in said


@pytest.mark.parametrize(
    ("words", "said", "command"),
    [
        (["nope"], "No such command 'nope'.", "twiceproof"),
        (["claims", "nope"], "No such command 'nope'.", "twiceproof claims"),
        (["claims", "lst"], "No such command 'lst'. Did you mean 'list'? See", "twiceproof claims"),
        (["claims", "list", "--nope"], "No such option", "twiceproof claims list"),
        (["claims", "show", "ship"], "Missing argument 'KEY'.", "twiceproof claims show"),
        (["claims", "list", "--limit", "many"], "Invalid value for '--limit'", "twiceproof claims list"),
        (["claims", "settle", "ship", "order:1"], "exactly one of", "twiceproof claims settle"),
        (["--nope"], "No such option", "twiceproof"),
    ],
)
def test_a_line_that_is_wrong_is_told_in_one_line_with_where_its_usage_stands(words, said, command):
    result = CliRunner().invoke(cli, words, prog_name="twiceproof")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert said in line
    assert line.endswith(f"See: {command} --help")
    assert result.stdout == ""
    told = CliRunner().invoke(cli, [*words, "--json"], prog_name="twiceproof")
    assert json.loads(told.stdout)["error"] == {"type": "Usage", "message": line[7:], "exit_code": 2}


@pytest.mark.parametrize("words", [[], ["claims"]])
def test_a_line_that_says_nothing_is_answered_with_the_help(words):
    result = CliRunner().invoke(cli, words, prog_name="twiceproof")
    assert "Usage: twiceproof" in result.output
    assert "Error" not in result.output


def test_a_message_that_has_its_own_next_move_ends_with_it(run, tmp_path):
    """A command at the end of a line can be pasted: nothing stands behind it."""
    kept = tmp_path / "my url"
    kept.write_text("sqlite:///a.db")
    kept.chmod(0o644)
    (line,) = run("claims", "list", store=f"@{kept}", code=2).stderr.splitlines()
    assert line.endswith(f"; run: chmod 600 '{kept}'")
