"""`twiceproof doctor`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from tests.unit.outbox.test_relay import Stage
from twiceproof.brokers.base import Refused
from twiceproof.cli import doctor
from twiceproof.cli import doctor as checks
from twiceproof.cli.main import cli
from twiceproof.clock import Clock
from twiceproof.errors import SchemaMismatch, StoreUnavailable, StoreUnsafe
from twiceproof.records import Address, Found, Page, Record
from twiceproof.stores.base import Finding


class Stub:
    """A store that only says how it is."""

    body_limit = 1_000_000

    def __init__(self, *findings, now=1_000.0, held=()):
        self.findings, self.now, self.held = findings, now, held

    def examine(self):
        return self.findings

    def read(self, at):
        return _Answer(Found(None, self.now))

    def scan(self, kind, **_):
        return _Answer(Page(self.held, None, self.now))

    def close(self):
        return None


class _Answer:
    def __init__(self, value):
        self.value = value

    def block(self):
        return self.value

    def __iter__(self):
        yield from ()
        return self.block()


def opens(monkeypatch, result):
    def open_store(url, **_):
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(doctor, "open_store", open_store)


SERVER = "postgresql://ann:s3cret@db/app"


@pytest.fixture(autouse=True)
def quiet_disk(monkeypatch):
    """Wherever the tests run, also in a container's own layer, the file system is no finding of theirs."""
    monkeypatch.setattr("twiceproof.stores.sqlite.doctor.mount_kind", lambda path: "ext4")


def levels(answer):
    return {finding["name"]: finding["level"] for finding in answer["findings"]}


def test_the_packages_are_those_of_the_store():
    shown = {scheme: packages_of(scheme) for scheme in ("sqlite", "rediss+cluster", "mysql", "azure-table")}
    assert shown["sqlite"] == ["msgspec", "click", "rich"]
    assert shown["rediss+cluster"][3:] == ["redis"] and shown["mysql"][3:] == ["pymysql"]
    assert shown["azure-table"][3:] == ["azure-data-tables", "azure-identity"]


def packages_of(scheme):
    (found,) = (one.found for one in checks.check_machine(None, scheme) if one.name == "packages")
    return [word for part in found.split(", ") for word in part.split(" ") if not word[0].isdecimal() and word != "no"]


def test_a_good_store_is_fine(run, run_json, ledger):
    answer = run_json("doctor")
    assert set(answer) == {"store", "verdict", "findings"}
    assert all(set(finding) == {"level", "name", "found", "advice"} for finding in answer["findings"])
    assert answer["verdict"] == "ok"
    assert {"clock skew", "clock step", "lease", "schema", "open files", "packages", "integrity"} <= set(levels(answer))
    text = run("doctor").stdout
    assert f"Store: {ledger.url}" in text
    assert "OK: this store" in text


def test_a_warning_is_told_with_its_advice_and_exit_code_1(run, run_json, ledger):
    ledger.path.chmod(0o644)
    assert levels(run_json("doctor", code=1))["permissions"] == "warn"
    assert "chmod 600" in run("doctor", code=1).stdout


def test_a_refusal_of_the_store_is_exit_code_2(run_json, monkeypatch):
    opens(monkeypatch, Stub(Finding("refuse", "fsync", "off", "Turn it on.")))
    assert run_json("doctor", store=SERVER, code=2)["verdict"] == "refuse"


def test_a_store_too_unsafe_to_open_is_a_finding_not_a_traceback(run, run_json, monkeypatch):
    findings = [Finding("refuse", "file system", "nfs", "Use a local disk.")]
    opens(monkeypatch, StoreUnsafe("no", findings=findings))
    assert levels(run_json("doctor", store=SERVER, code=2))["file system"] == "refuse"
    assert "Use a local disk." in run("doctor", store=SERVER, code=2).stdout


def test_a_file_on_a_network_file_system_is_refused_before_it_is_made(run_json, monkeypatch, tmp_path):
    monkeypatch.setattr("twiceproof.stores.sqlite.doctor.mount_kind", lambda path: "nfs4")
    assert levels(run_json("doctor", store="sqlite:///new.db", code=2))["file system"] == "refuse"
    assert not (tmp_path / "new.db").exists()


def test_a_store_that_does_not_answer_is_exit_code_3(run, run_json, monkeypatch):
    opens(monkeypatch, StoreUnavailable("The store does not answer."))
    assert run_json("doctor", store=SERVER, code=3)["verdict"] == "refuse"
    assert "could not be checked" in run("doctor", store=SERVER, code=3).stdout


def test_a_newer_schema_is_refused(run_json, monkeypatch):
    opens(monkeypatch, SchemaMismatch("newer; upgrade twiceproof."))
    assert levels(run_json("doctor", store=SERVER, code=2))["schema"] == "refuse"


def test_no_file_yet_is_a_warning_and_makes_none(run_json, tmp_path):
    assert levels(run_json("doctor", store="sqlite:///new.db", code=1))["ledger"] == "warn"
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize("content", [b"", b"this is not a database, whatever its name says" * 100])
def test_a_file_that_is_no_ledger_is_refused_and_left_alone(run_json, tmp_path, content):
    (tmp_path / "other.db").write_bytes(content)
    assert levels(run_json("doctor", store="sqlite:///other.db", code=2))["ledger"] == "refuse"
    assert (tmp_path / "other.db").read_bytes() == content


def test_the_password_is_never_printed(run, monkeypatch):
    opens(monkeypatch, StoreUnavailable(f"cannot connect to {SERVER} (password=s3cret)"))
    for words in (["doctor"], ["doctor", "--json"]):
        result = run(*words, store=SERVER, code=3)
        assert "s3cret" not in result.stdout + result.stderr
        assert "postgresql://ann:***@db/app" in result.stdout


# -- the checks by themselves -----------------------------------------------------------------------


def check(name, store, scheme="postgresql", clock=None):
    clock = clock or Clock(now=lambda: 1_000.0, monotonic=lambda: 5.0)
    return next(found for found in checks.check_ledger(store, scheme, clock) if found.name == name)


def held(updated_at, lease):
    at = Address("s", "claim", "self")
    return Record(at, "{}", "held", "1", 1, "n", updated_at, updated_at, updated_at + lease)


@pytest.mark.parametrize(("now", "level"), [(1_000.5, "ok"), (999.5, "ok"), (1_002.0, "warn"), (990.0, "warn")])
def test_a_store_whose_clock_is_off_is_warned_about(now, level):
    assert check("clock skew", Stub(now=now)).level == level


def test_a_store_without_a_clock_of_its_own_has_no_skew():
    assert check("clock skew", Stub(now=500.0), scheme="sqlite").level == "ok"


def test_a_claim_from_the_future_shows_that_the_clock_was_set_back():
    assert check("clock step", Stub(held=[held(1_060.0, 30.0)])).level == "warn"
    assert check("clock step", Stub(held=[held(990.0, 30.0)])).level == "ok"


def test_a_lease_too_short_for_the_store_is_warned_about():
    ticks = iter(range(100))
    slow = Clock(now=lambda: 1_000.0, monotonic=lambda: float(next(ticks)))
    assert check("lease", Stub(held=[held(990.0, 3.0)]), clock=slow).level == "warn"
    assert check("lease", Stub(held=[held(990.0, 3.0)])).level == "ok"


def test_few_open_files_are_warned_about(monkeypatch):
    monkeypatch.setattr(checks.resource, "getrlimit", lambda what: (64, 64))
    assert {f.name: f.level for f in checks.check_machine(None)}["open files"] == "warn"
    monkeypatch.setattr(checks.resource, "getrlimit", lambda what: (checks.resource.RLIM_INFINITY,) * 2)
    assert {f.name: f.level for f in checks.check_machine(None)}["open files"] == "ok"


def test_a_file_in_a_directory_that_does_not_exist_is_refused(tmp_path):
    done = CliRunner().invoke(cli, ["--store", f"sqlite:///{tmp_path}/no/such.db", "doctor"])
    assert done.exit_code == 2
    assert "directory does not exist" in done.output


def test_python_m_runs_the_same_program():
    done = subprocess.run([sys.executable, "-m", "twiceproof", "version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("size", "said"), [(doctor.LARGE, True), (doctor.LARGE - 1, False)])
def test_a_large_file_is_announced_before_it_is_read_from_end_to_end(run, ledger, monkeypatch, size, said):
    real = doctor.sqlite_size
    assert real(ledger.path) == ledger.path.stat().st_size
    monkeypatch.setattr(doctor, "sqlite_size", lambda path: size)
    answer = run("doctor", "--json")
    assert ("this can take a while" in answer.stderr) == said
    json.loads(answer.stdout)


def test_messages_that_wait_for_long_or_for_review_are_named():
    stage = Stage()
    store, clock = stage.app.store, stage.clock

    def found():
        return [(one.level, one.found) for one in checks.check_ledger(store, "memory", clock) if one.name == "messages"]

    assert found() == []
    stage.send("a", "b")
    assert [level for level, _ in found()] == ["ok"]
    clock.advance(3_600)
    assert found() == [("warn", "2 wait to be published, the oldest for 60 min; 0 wait for review")]
    stage.broker.always["a"] = Refused("no", final=True)
    stage.until_idle()
    assert found() == [("warn", "0 wait to be published; 1 wait for review")]
    stage.relay.close()
    stage.app.close()
