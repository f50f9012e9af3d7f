"""The flows of examples/flows go live: proved with second kills, promoted by the commands, and run on their release."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.acceptance.flow_proofs import proved_apart
from tests.acceptance.test_flow_files import EVENT, INPUTS, counts, folder, outside, secrets, started
from twiceproof import App, Misuse, Waiting, load_flows
from twiceproof.cli.main import cli
from twiceproof.declared import gate
from twiceproof.declared.releases import keep_proof
from twiceproof.operations import block
from twiceproof.stores.open import open_store

__all__ = ["folder", "outside", "secrets", "started"]  # fixtures

pytestmark = [pytest.mark.slow, pytest.mark.server]


def typed(url: str, *words: object) -> str:
    done = CliRunner().invoke(cli, ["--store", url, "flows", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done.output


EVERY_KILL = "TWICEPROOF_TEST_EVERY_KILL"
LONG = pytest.mark.skipif(EVERY_KILL not in os.environ, reason=f"1,940 scenarios: make prove, which sets {EVERY_KILL}")


@pytest.mark.parametrize("name", ["welcome", "sync_order", pytest.param("run_agent", marks=LONG)])
def test_a_flow_of_the_examples_is_proved_promoted_and_run(
    tmp_path, monkeypatch, postgres_dsn, folder, outside, started, ssh_port, name
):
    monkeypatch.chdir(tmp_path)
    for secret in ("SHOPIFY_SECRET", "CRM_SECRET", "TRACKER_SECRET"):
        monkeypatch.setenv(secret, "whsec_" + "a" * 32)
    place_builder(tmp_path, folder, ssh_port, monkeypatch)
    file = folder / f"{name}.flow.yaml"
    evidence = proved_apart(file)
    for url in (f"sqlite:///{tmp_path}/ledger.db", postgres_dsn):
        typed(url, "push", file)
        store = open_store(url)
        block(keep_proof(store, evidence))
        store.close()
        assert f"r1 of {name} is live" in typed(url, "promote", name, "--note", "first")
        with App(url, url="https://hooks.example") as app:
            flow = load_flows(app, folder, released=True)[name]
            finish(app, flow)
            (run,) = app.runs(flow=name)
            assert (run.version, run.state) == ("r1", "done")
    web, post = outside
    acts = {what: count for what, count in counts(web).items() if what.startswith("POST ")} | counts(post)
    assert acts and max(acts.values()) <= 2, acts  # at most once on each of the two ledgers


@pytest.fixture
def ssh_port() -> Iterator[int]:
    """Where the builder listens: a promotion asks whether it answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def place_builder(tmp_path: Path, folder: Path, ssh_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("agent_key", "known"):
        (tmp_path / name).write_text("for the agent")
    text = (folder / "connections.yaml").read_text().replace("ssh: builder.example", "ssh: 127.0.0.1")
    text = text.replace("/run/secrets/agent_key", f"{tmp_path}/agent_key").replace(
        "/etc/ssh/known", f"{tmp_path}/known"
    )
    (folder / "connections.yaml").write_text(text)
    monkeypatch.setattr(gate, "SSH_PORT", ssh_port)


def finish(app: App, flow: Any) -> None:
    """Call it, and give it what it waits for: an approval, and the agent's callback."""
    (given,) = INPUTS[flow.flow.name].values()
    try:
        flow(given)
        return
    except Waiting:
        (request,) = app.approvals()
        app.decide(request.id, approved=True, by="ann")
        app.worker().run(until_idle=True)
    app.deliver_to(flow="run_agent", key=flow.key(EVENT), name="finished", payload={"summary": "s", "report": "# r"})
    app.worker().run(until_idle=True)


def test_without_a_release_nothing_of_the_directory_is_started(tmp_path, folder):
    with App(f"sqlite:///{tmp_path}/ledger.db", url="https://hooks.example") as app:
        with pytest.raises(Misuse, match="No release of welcome is live"):
            load_flows(app, folder, released=True)["welcome"](INPUTS["welcome"]["customer"])
        assert app.runs() == []
