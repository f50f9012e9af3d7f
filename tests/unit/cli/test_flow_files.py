"""`twiceproof flows lint` and `flows schema`."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

from twiceproof import App
from twiceproof.cli.main import cli
from twiceproof.declared.model import schema

TESTS = "tests: [{name: one, input: {id: a}}]\n"
SOUND = "flow: x\ninput: {id: text}\nkey: k:{id}\nsteps:\n  - done: =id\n" + TESTS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.flow.yaml").write_text(SOUND)
    return tmp_path


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["flows", *map(str, words)])
    return done.exit_code, done.output


def test_sound_files_have_no_problems(folder):
    assert run("lint", folder) == (0, "Checked 1 file: no problems.\n")


def test_problems_are_told_with_place_and_remedy(folder):
    bad = folder / "bad.flow.yaml"
    bad.write_text(SOUND.replace("=id", "=idd"))
    code, said = run("lint", folder)
    assert code == 1
    assert f"{bad}:5:12: unknown-name: idd: there is no step or input 'idd' here\n" in said
    assert (
        "    Why: A misspelt name would be an empty text in a mail or an address.\n    Instead: id (line 2)\n" in said
    )
    code, said = run("lint", bad, "--json")
    (problem,) = json.loads(said)["problems"]
    assert json.loads(said)["next"] == [f"twiceproof flows lint {bad}"]
    assert code == 1 and problem == {
        "file": str(bad),
        "line": 5,
        "column": 12,
        "level": "error",
        "rule": "unknown-name",
        "found": "idd: there is no step or input 'idd' here",
        "why": "A misspelt name would be an empty text in a mail or an address.",
        "instead": "id (line 2)",
    }


def test_a_warning_keeps_no_flow_from_running(folder):
    (folder / "good.flow.yaml").write_text(SOUND.replace(TESTS, ""))
    code, said = run("lint", folder)
    assert code == 0 and said.endswith("Checked 1 file: no problems, 1 warning.\n") and ": no-test: " in said


def test_sarif_is_written_for_code_hosts(folder, tmp_path):
    (folder / "bad.flow.yaml").write_text(SOUND.replace("=id", "=idd"))
    target = tmp_path / "lint.sarif"
    assert run("lint", folder, "--sarif", target)[0] == 1
    (result,) = json.loads(target.read_text())["runs"][0]["results"]
    assert result["ruleId"] == "unknown-name"
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 5, "startColumn": 12}


def test_a_directory_without_flows_says_so(tmp_path):
    code, said = run("lint", tmp_path)
    assert code != 0 and "There is no file *.flow.yaml" in said


def test_the_schema_is_that_of_the_types():
    code, said = run("schema")
    assert code == 0 and json.loads(said) == json.loads(json.dumps(schema()))


TESTED = """\
flow: hello
input: {id: text}
key: k:{id}
uses: [books]
steps:
  - step: told
    http: PUT books /told/{id}
    repeat: safe
tests: [{name: one, input: {id: a}, expect: {PUT books /told/a: 1}}]
"""


def test_tests_are_played_and_their_evidence_is_kept(tmp_path):
    file = tmp_path / "hello.flow.yaml"
    file.write_text(TESTED)
    store = f"sqlite:///{tmp_path}/ledger.db"
    done = CliRunner().invoke(cli, ["--store", store, "flows", "test", str(file), "--by", "ann", "--depth", "1"])
    assert done.exit_code == 0 and "ok  hello.flow.yaml: one: " in done.output, done.output
    assert "Kept as evidence for hello " in done.output
    assert f"Next: twiceproof --store {store} flows promote hello" in done.output
    with App(store) as app:
        (record,) = app.store.scan("proof", space="~flows/default/hello").block().records
    assert b'"by":"ann"' in record.body.encode() and b'"depth":1' in record.body.encode()


def test_evidence_is_kept_only_for_a_token_that_may_release(tmp_path):
    file, secret = tmp_path / "hello.flow.yaml", tmp_path / "ci.token"
    file.write_text(TESTED)
    store = f"sqlite:///{tmp_path}/ledger.db"

    def tested(scope: str) -> tuple[int, str]:
        made = CliRunner().invoke(cli, ["--store", store, "tokens", "create", scope, "--scope", scope, "--json"])
        secret.write_text(json.loads(made.output)["token"])
        secret.chmod(0o600)
        words = ["--store", store, "flows", "test", str(file), "--depth", "1", "--token", f"@{secret}"]
        done = CliRunner().invoke(cli, words)
        return done.exit_code, done.output

    code, said = tested("run")
    assert code == 2 and "run may not keep evidence for a release" in said and "ok  hello" not in said
    with App(store) as app:
        assert app.store.scan("proof", space="~flows/default/hello").block().records == []
    assert tested("release")[0] == 0
    with App(store) as app:
        (record,) = app.store.scan("proof", space="~flows/default/hello").block().records
    assert b'"by":"release"' in record.body.encode()


def test_lint_asks_the_draft_database_for_its_indexes(folder, tmp_path):
    text = "flow: note\ninput: {id: text}\nkey: k:{id}\nuses: [shop]\nsteps:\n  - step: row\n    sql: shop\n"
    text += "    upsert: {table: notes, by: [id], row: {id: =id}}\ntests: [{name: one, input: {id: a}}]\n"
    (folder / "note.flow.yaml").write_text(text)
    live = f"shop: {{live: {{sql: 'sqlite:///{tmp_path}/live.db'}}"
    (folder / "connections.yaml").write_text(f"{live}}}\n")
    assert run("lint", folder)[0] == 0  # the live side is not asked
    with sqlite3.connect(tmp_path / "draft.db") as db:
        db.execute("CREATE TABLE notes (id TEXT)")
    (folder / "connections.yaml").write_text(f"{live}, draft: {{sql: 'sqlite:///{tmp_path}/draft.db'}}}}\n")
    code, said = run("lint", folder)
    assert code == 1 and "note.flow.yaml:8:28: unique-index: notes has no unique index on exactly (id)" in said
    assert "Instead: CREATE UNIQUE INDEX notes_id_key ON notes (id)" in said
    with sqlite3.connect(tmp_path / "draft.db") as db:
        db.execute("CREATE UNIQUE INDEX notes_id_key ON notes (id)")
    assert run("lint", folder)[0] == 0


def test_a_wrong_declaration_is_told_in_the_words_of_a_file(tmp_path):
    (tmp_path / "hello.flow.yaml").write_text(TESTED.replace("PUT books /told", "POST books /told"))
    code, told = run("test", tmp_path, "--depth", 1)
    assert code == 1 and "otherwise never (a person is asked)" in told and "app." not in told


def test_a_test_that_fails_says_how_to_go_on(tmp_path):
    file = tmp_path / "hello.flow.yaml"
    file.write_text(TESTED.replace("told/a: 1", "told/a: 2"))
    code, said = run("test", file, "--depth", 1, "--json", "--junit", tmp_path / "proof.xml")
    shape = json.loads(said)
    assert code == 1 and shape["good"] is False
    assert shape["flows"][0]["tests"][0]["unmet"] == ["PUT books /told/a: 2 expected, and 1 seen"]
    assert shape["next"] == [f"twiceproof flows test {file} --test one --depth 1"]
    assert 'failures="1"' in (tmp_path / "proof.xml").read_text()


def test_a_file_with_problems_is_not_tested(tmp_path):
    (tmp_path / "bad.flow.yaml").write_text(TESTED.replace("repeat: safe", "repeat: sometimes"))
    code, said = run("test", tmp_path)
    assert code != 0 and "bad.flow.yaml:6:5: " in said and "flows lint" in said
