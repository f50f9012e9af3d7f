"""`twiceproof flows push|releases|show|diff|promote|rollback|pause|resume`, and `prove --record`."""

from __future__ import annotations

import hmac
import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.unit.declared.releasing import TENANT, greet
from twiceproof import App, load_flows
from twiceproof.cli.main import cli
from twiceproof.declared.releases import FlowProof, TestProof, draft_of, keep_proof
from twiceproof.operations import block
from twiceproof.server.tokens import Scope, create_token
from twiceproof.stores.open import open_store
from twiceproof.version import __version__

STEPS = "  - set: {said: =id}\n"
SECRET = "whsec_" + "a" * 32
TESTS = "tests:\n  - {name: one, input: {id: a}}\n"


class Shop:
    """A directory with a flow, and a ledger."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/ledger.db"
        self.file = folder / "flows" / "greet.flow.yaml"
        self.file.parent.mkdir()
        (folder / "flows" / "connections.yaml").write_text("")
        self.write("one")

    def write(self, text: str, key: str = "greet:{id}") -> None:
        self.file.write_text(greet(text, key=key, steps=STEPS) + TESTS)

    def run(self, *words: object) -> tuple[int, str]:
        done = CliRunner().invoke(cli, ["--store", self.url, *map(str, words)])
        return done.exit_code, done.output

    def json(self, *words: object) -> Any:
        code, said = self.run(*words, "--json")
        return code, json.loads(said)

    def prove(self) -> None:
        """Keep evidence for the draft, as `flows test` does."""
        store = open_store(self.url)
        draft = block(draft_of(store, TENANT, "greet"))
        results = (TestProof("one", 92, 92, True),)
        block(keep_proof(store, FlowProof("greet", TENANT, draft.hash, draft.tests, {}, __version__, 2, results)))
        store.close()

    def release(self, text: str, **given: Any) -> None:
        self.write(text, **given)
        self.run("flows", "push", self.file)
        self.prove()
        assert self.run("flows", "promote", "greet", "--by", "ada", "--new-key", "renamed")[0] == 0


@pytest.fixture
def shop(tmp_path: Path, monkeypatch) -> Shop:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TWICEPROOF_STORE", raising=False)
    monkeypatch.delenv("TWICEPROOF_TENANT", raising=False)
    return Shop(tmp_path)


def test_a_flow_goes_from_a_file_to_live_and_back(shop):
    code, said = shop.run("flows", "push", shop.file, "--note", "first")
    assert code == 0 and said.startswith("Stored the draft of greet: ") and "nothing is live" in said
    code, said = shop.run("flows", "promote", "greet")
    assert code == 1 and "refuse  evidence: there is no evidence for this content" in said and "Not promoted" in said
    shop.prove()
    code, said = shop.run("flows", "promote", "greet", "--dry-run")
    assert code == 0 and "Every condition is met. Nothing has changed." in said
    code, said = shop.run("flows", "promote", "greet", "--by", "ada", "--note", "go")
    assert code == 0 and "r1 of greet is live" in said
    shop.release("two")
    code, said = shop.run("flows", "rollback", "greet", "--by", "bob")
    assert code == 0 and "r1 of greet is live" in said
    code, told = shop.json("flows", "releases", "greet")
    assert [(one["what"], one["number"], one["by"]) for one in told["changes"]] == [
        ("promote", 1, "ada"),
        ("promote", 2, "ada"),
        ("rollback", 1, "bob"),
    ]
    assert told["live"]["release"] == "r1" and [one["release"] for one in told["releases"]] == ["r2", "r1"]
    assert told["releases"][0]["proof"]["scenarios"] == 92
    assert "r2" in shop.run("flows", "releases", "greet")[1]


def test_every_answer_names_the_commands_that_may_follow(shop):
    for words in (("push", shop.file), ("promote", "greet", "--dry-run"), ("agree", "greet"), ("releases", "greet")):
        told = shop.json("flows", *words)[1]
        assert told["next"] and all(move.startswith("twiceproof --store ") for move in told["next"])
    shop.release("one")
    for words in (
        ("rollback", "greet", "--to", "r1"),
        ("pause", "greet"),
        ("resume", "greet"),
        ("diff", "greet"),
        ("show", "greet"),
    ):
        code, told = shop.json("flows", *words)
        assert code == 0 and told["next"]


def test_a_flow_that_asks_for_it_goes_live_when_another_person_agrees(shop):
    shop.file.write_text(shop.file.read_text().replace("steps:", "second: true\nsteps:"))
    shop.run("flows", "push", shop.file)
    shop.prove()
    code, said = shop.run("flows", "promote", "greet", "--by", "ada")
    assert code == 1 and "another person: twiceproof flows agree greet" in said
    code, said = shop.run("flows", "agree", "greet", "--by", "bob", "--note", "read it")
    assert code == 0 and said.startswith("bob agrees to ")
    assert shop.run("flows", "promote", "greet", "--by", "ada")[0] == 0
    changes = shop.json("flows", "releases", "greet")[1]["changes"]
    assert [(one["what"], one["by"], one["note"]) for one in changes] == [
        ("agree", "bob", "read it"),
        ("promote", "ada", ""),
    ]


def test_the_command_that_proves_a_draft_names_the_store(shop, monkeypatch):
    monkeypatch.setenv("TWICEPROOF_STORE", shop.url)
    done = CliRunner().invoke(cli, ["flows", "push", str(shop.file), "--json"])
    assert json.loads(done.output)["next"][0].endswith(f"--store {shop.url}")


def test_the_same_content_is_pushed_once(shop):
    assert shop.json("flows", "push", shop.file)[1]["changed"] is True
    shop.file.write_text("# a comment\n" + shop.file.read_text())
    assert shop.json("flows", "push", shop.file)[1]["changed"] is False


def test_a_diff_names_a_changed_key_before_it_is_promoted(shop):
    shop.release("one")
    shop.write("two", key="greeting:{id}")
    shop.run("flows", "push", shop.file)
    code, said = shop.run("flows", "diff", "greet")
    assert code == 0 and "key greet: greet:{id} → greeting:{id}" in said
    assert "late duplicates of finished work would be done again" in said
    assert "0 keys of greet are remembered." in said
    told = shop.json("flows", "diff", "greet")[1]
    assert told["late_duplicates"] is True and {one["what"] for one in told["changes"]} == {"key", "setting"}
    shop.prove()
    code, said = shop.run("flows", "promote", "greet")
    assert code == 1 and 'Instead: keep the key, or say why: --new-key "…"' in said


def test_a_release_is_shown_as_it_was_pushed(shop):
    shop.release("one")
    shop.write("two")
    code, said = shop.run("flows", "show", "greet", "--release", "r1")
    assert code == 0 and 'returns: "one"' in said
    assert shop.json("flows", "show", "greet")[1]["text"] == greet("one", steps=STEPS) + TESTS


def test_a_token_without_the_scope_is_refused_and_one_with_it_acts_under_its_name(shop, tmp_path):
    shop.run("flows", "push", shop.file)
    shop.prove()
    token = tmp_path / "token"
    for scope, code in (("run", 1), ("release", 0)):
        made = shop.json("tokens", "create", f"ci-{scope}", "--scope", scope)[1]
        token.write_text(made["token"])
        token.chmod(0o600)
        got, told = shop.json("flows", "promote", "greet", "--token", f"@{token}")
        assert (got, told["promoted"]) == (code, code == 0)
    assert told["live"]["by"] == "ci-release"
    token.write_text(shop.json("tokens", "create", "other", "--tenant", "acme", "--scope", "release")[1]["token"])
    assert shop.run("flows", "rollback", "greet", "--token", f"@{token}")[0] == 2
    assert shop.run("flows", "rollback", "greet", "--token", token.read_text())[0] == 2


def test_pause_and_resume_say_what_they_do(shop):
    shop.release("one")
    assert "no run begins or continues" in shop.run("flows", "pause", "greet")[1]
    assert shop.json("flows", "releases", "greet")[1]["live"]["paused"] is True
    assert shop.run("flows", "resume", "greet")[1].startswith("greet continues.")


def test_what_is_not_there_is_said_with_the_next_move(shop):
    shop.run("flows", "push", shop.file)
    assert "has no release and no draft" in shop.run("flows", "releases", "other")[1]
    for words in (("show", "greet"), ("rollback", "greet"), ("promote", "nothing"), ("diff", "greet")):
        code, said = shop.run("flows", *words)
        assert code == 2 and "twiceproof flows" in said


WARNED = """\
flow: greet
input: {id: text}
key: greet:{id}
uses: [books]
steps:
  - step: order
    http: POST books /orders
    json: {id: =id}
    repeat: keyed
  - fail: no {id}
    if: id == "none"
returns: =order.id
tests:
  - name: one
    input: {id: a}
    answers: {POST books /orders: {status: 201, body: {id: o1}}}
    expect: {returns: o1, POST books /orders: 1}
"""


@pytest.mark.forks
def test_a_flow_with_a_warning_goes_live_by_the_commands_that_answers_name(shop):
    """Push, test with `--store`, promote: each command is the one that the answer before it named."""
    with socket.create_server(("127.0.0.1", 0)) as books:
        address = f"http://127.0.0.1:{books.getsockname()[1]}"
        (shop.file.parent / "connections.yaml").write_text(f"books: {{live: {{http: {address}}}}}\n")
        shop.file.write_text(WARNED)
        tests = shop.json("flows", "push", shop.file)[1]["next"][0]
        code, told = shop.json(*shlex.split(tests)[3:])
        assert code == 0 and told["good"] is True
        code, told = shop.json(*shlex.split(told["next"][0])[3:])
    lint = next(check for check in told["checks"] if check["name"] == "lint")
    assert lint["ok"] and lint["found"].startswith("no errors, 1 warning: 6:5: missing-undo: order creates something")
    assert (code, told["promoted"], told["live"]["release"]) == (0, True, "r1")
    assert [test["name"] for test in told["release"]["proof"]["results"]] == ["one"]


HTTP = """\
flow: greet
input: {id: text}
key: greet:{id}
uses: [crm]
steps:
  - step: profile
    http: GET crm /x
returns: =profile
tests: [{name: one, input: {id: a}, answers: {GET crm /x: {body: {name: Ada}}}}]
"""


def test_a_draft_is_run_with_stand_ins_and_says_so(shop, tmp_path):
    shop.file.write_text(HTTP)
    (shop.file.parent / "connections.yaml").write_text("crm: {live: {http: https://crm.invalid}}\n")
    shop.run("flows", "push", shop.file)
    (tmp_path / "event.json").write_text('{"id": "a"}')
    code, told = shop.json("flows", "run", "greet", "--draft", "--event", "event.json")
    assert code == 0 and told["state"] == "done" and told["result"] == {"name": "Ada"}
    assert (told["flow"], told["stood_in"], told["allowed_live"]) == ("greet@draft", ["GET crm /x"], [])
    code, said = shop.run("flows", "run", "greet", "--draft", "--like", "greet@draft/greet:a")
    assert code == 0 and "Replaced by a stand-in: GET crm /x" in said
    assert shop.run("flows", "run", "greet", "--event", "event.json")[0] == 2


def test_a_live_connection_of_a_draft_needs_the_scope_and_is_recorded(shop, tmp_path):
    shop.file.write_text(HTTP)
    (shop.file.parent / "connections.yaml").write_text("crm: {live: {http: http://127.0.0.1:9}}\n")
    shop.run("flows", "push", shop.file)
    (tmp_path / "event.json").write_text('{"id": "a"}')
    token = tmp_path / "token"
    token.write_text(shop.json("tokens", "create", "ci", "--scope", "run")[1]["token"])
    token.chmod(0o600)
    words = ("flows", "run", "greet", "--draft", "--event", "event.json", "--allow-live", "crm")
    code, said = shop.run(*words, "--token", f"@{token}")
    assert code == 2 and "scope release" in said
    assert shop.json("flows", "releases", "greet")[1]["changes"] == []
    assert shop.json(*words, "--by", "ada", "--note", "a look")[1]["allowed_live"] == ["crm"]
    (change,) = shop.json("flows", "releases", "greet")[1]["changes"]
    assert (change["what"], change["by"], change["about"], change["note"]) == ("draft", "ada", ["crm"], "a look")


def test_a_draft_reads_a_dead_letter_as_its_own_webhook_does(shop, monkeypatch):
    monkeypatch.setenv("GREET_SECRET", SECRET)
    hook = "on:\n  - webhook: generic\n    name: shop\n    secret: env:GREET_SECRET\n"
    hook += "    options: {id: id, signature: X-S}\n"
    live = greet("one", steps="  - set: {said: =id}\n", more=hook + "    give: {id: =body.nme}\n")
    shop.file.write_text(live)
    body = b'{"id": "e1", "name": "Ada"}'
    with App(shop.url) as app:
        load_flows(app, shop.file.parent)
        signature = hmac.new(SECRET.encode(), body, "sha256").hexdigest()
        assert app.receive("shop", body, [("x-s", signature), ("content-type", "application/json")]).status != 500
    (letter,) = shop.json("hooks", "dead-letters")[1]["dead_letters"]
    words = ("flows", "run", "greet", "--draft", "--replay-letter", letter["id"])
    shop.file.write_text(live.replace("body.nme", "body.name"))
    shop.run("flows", "push", shop.file)
    code, told = shop.json(*words)
    assert code == 0 and (told["state"], told["key"]) == ("done", "greet:Ada"), told
    assert [one["id"] for one in shop.json("hooks", "dead-letters")[1]["dead_letters"]] == [letter["id"]]
    refused = live.replace("body.nme}", "body.name}\n    only: type == 'other'").replace("name: shop", "name: else")
    shop.file.write_text(refused)
    shop.run("flows", "push", shop.file)
    assert "no webhook of this draft" in shop.run(*words)[1]
    shop.file.write_text(refused.replace("name: else", "name: shop").replace("type ==", "name =="))
    shop.run("flows", "push", shop.file)
    assert "its `only` refuses it" in shop.run(*words)[1]
    assert "give one of" in shop.run("flows", "run", "greet", "--draft")[1]


def test_waiting_runs_are_moved_after_a_dry_run_that_says_the_same(shop, tmp_path):
    shop.file.write_text(greet("one", steps="  - {approve: go}\n") + TESTS)
    shop.run("flows", "push", shop.file)
    shop.prove()
    shop.run("flows", "promote", "greet")
    with App(shop.url) as app:
        flow = load_flows(app, shop.file.parent)["greet"]
        for name in ("a", "b"):
            flow.start(name)
        app.worker().run(until_idle=True)
    shop.file.write_text(greet("two", steps="  - {approve: go}\n" + STEPS) + TESTS)
    shop.run("flows", "push", shop.file)
    shop.prove()
    assert shop.run("flows", "promote", "greet")[0] == 0
    words = ("flows", "migrate", "greet/greet:a", "greet/greet:b", "--to", "r2")
    code, told = shop.json(*words, "--dry-run")
    assert (
        code == 0
        and [(one["before"], one["to"], one["goes_on"], one["moved"]) for one in told["runs"]]
        == [("r1", "r2", True, False)] * 2
    )
    code, told = shop.json(*words, "--by", "ada", "--note", "new text")
    assert code == 0 and all(one["moved"] for one in told["runs"])
    change = shop.json("flows", "releases", "greet")[1]["changes"][-1]
    assert (change["what"], change["by"], len(change["about"])) == ("migrate", "ada", 2)
    with App(shop.url) as app:
        assert {run.version for run in app.runs()} == {"r2"}
    code, said = shop.run("flows", "migrate", "greet/greet:a", "--to", "r1", "--dry-run")
    assert code == 0 and "goes on" in said


PYTHON = """\
import os, pathlib
from twiceproof import App

app = App(os.environ["SHOP_STORE"])
OUT = pathlib.Path("out")

@app.step(repeat="safe")
def write(order):
    OUT.mkdir(exist_ok=True)
    (OUT / order).write_text("done")
    return order

@app.flow(key="order:{order}", version="7")
def ship(order):
    return write(order)
"""


def test_a_python_flow_is_promoted_on_its_own_evidence(shop, tmp_path):
    (tmp_path / "shop.py").write_text(PYTHON)
    (tmp_path / "order.json").write_text('"a1"')
    (tmp_path / "out").mkdir()

    def typed(*words: str) -> subprocess.CompletedProcess[str]:
        program = str(Path(sys.executable).with_name("twiceproof"))
        env = {**os.environ, "SHOP_STORE": shop.url}
        return subprocess.run([program, *words], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=170)

    promote = ("--store", shop.url, "flows", "promote", "shop:ship", "--by", "ada")
    typed("--store", shop.url, "flows", "push", str(shop.file))  # makes the ledger
    assert "there is no evidence" in typed(*promote).stdout
    assert typed("prove", "shop:ship", "--event", "order.json", "--files", "out", "--record").returncode == 0
    done = typed(*promote)
    assert done.returncode == 0, done.stdout + done.stderr
    told = shop.json("flows", "releases", "ship")[1]
    assert (told["live"]["release"], told["live"]["version"], told["live"]["by"]) == ("r1", "7", "ada")
    assert told["changes"][0]["evidence"].endswith("scenarios of 1 test")
    (tmp_path / "shop.py").write_text(PYTHON.replace('"done"', '"shipped"'))
    assert "there is no evidence for this content" in typed(*promote).stdout
    part = typed("prove", "shop:ship", "--event", "order.json", "--files", "out", "--record", "--scenario", "lost-1")
    assert part.returncode == 2 and "no evidence" in part.stderr


def test_a_dry_run_and_a_token_without_the_scope_store_nothing_of_a_python_flow(shop, tmp_path, monkeypatch):
    """A content that is stored becomes the draft: that of a file with this name would be pushed aside."""
    (tmp_path / "shop_of_greet.py").write_text(
        "from twiceproof import App\n\napp = App('memory://')\n\n\n"
        "@app.flow(key='k:{id}')\ndef greet(id):\n    return id\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    shop.run("flows", "push", shop.file)
    draft = shop.json("flows", "releases", "greet")[1]["draft"]
    with App(shop.url) as app:
        secret, _ = block(create_token(app.store, "reader", TENANT, [Scope.READ]))
    (tmp_path / "reader.token").write_text(secret)
    (tmp_path / "reader.token").chmod(0o600)
    for words in (["--dry-run"], ["--token", "@reader.token"]):
        code, told = shop.json("flows", "promote", "shop_of_greet:greet", *words)
        assert code == 1 and not told["promoted"] and told["release"]["version"] == "1"
        assert shop.json("flows", "releases", "greet")[1]["draft"] == draft
    shop.run("flows", "promote", "shop_of_greet:greet")  # refused for want of evidence, and kept for it
    assert shop.json("flows", "releases", "greet")[1]["draft"] != draft
