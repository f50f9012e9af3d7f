"""The relay beside a worker, alone, and on the command line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.outbox.stand_in import StandInBroker
from twiceproof import App
from twiceproof.cli.main import cli

SHOP = """
from twiceproof import App
from twiceproof.brokers.base import Confirmed

class Log:
    dedupe = 0.0
    def publish(self, messages, patience):
        with open({log!r}, "a") as file:
            for message in messages:
                file.write(message.key + "\\n")
        return [Confirmed() for _ in messages]
    def close(self): ...

app = App("sqlite:///{db}")
app.broker("main", Log())
app.route("orders.*", to="main")
"""


def test_a_worker_that_ends_when_idle_publishes_what_its_runs_sent(tmp_path: Path) -> None:
    broker = StandInBroker()
    with App(f"sqlite:///{tmp_path}/shop.db") as app:
        app.broker("main", broker)
        app.route("orders.*", to="main")

        @app.flow(key="{order}")
        def buy(order: str) -> None:
            app.send("orders.paid", {"order": order})

        buy.start("17")
        app.worker().run(until_idle=True)
    assert len(broker.keys) == 1


def test_a_worker_publishes_in_the_background_and_drains_with_it(tmp_path: Path) -> None:
    broker, seen = StandInBroker(), threading.Event()
    broker.after = seen.set
    with App(f"sqlite:///{tmp_path}/shop.db") as app:
        app.broker("main", broker)
        app.route("orders.*", to="main")
        worker = app.worker()
        thread = threading.Thread(target=worker.run)
        thread.start()
        app.send("orders.paid", {}, key="a")
        assert seen.wait(10)
        worker.drain()
        thread.join(10)
        assert not thread.is_alive()
        assert [record.state for record in app.store.scan("message").block().records] == ["sent"]


def test_confirmations_are_awaited_when_a_relay_drains(tmp_path: Path) -> None:
    broker, asked, go_on = StandInBroker(), threading.Event(), threading.Event()

    def wait() -> None:
        asked.set()
        go_on.wait(10)

    broker.before = wait
    with App(f"sqlite:///{tmp_path}/shop.db") as app:
        app.broker("main", broker)
        app.route("orders.*", to="main")
        app.send("orders.paid", {}, key="a")
        relay = app.relay()
        relay.start()
        assert asked.wait(10)
        relay.drain()
        assert relay.join(0.05) == 1  # it is still being published
        go_on.set()
        assert relay.join(10) == 0
        assert [record.state for record in app.store.scan("message").block().records] == ["sent"]


@pytest.mark.slow
def test_a_relay_command_that_ends_when_idle_says_what_waits(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP.format(log=str(tmp_path / "log"), db=tmp_path / "shop.db"))
    with App(f"sqlite:///{tmp_path}/shop.db") as app:
        app.broker("main", StandInBroker())
        app.route("orders.*", to="main")
        app.send("orders.paid", {"order": 17}, key="a")
        app.send("orders.paid", {"order": 18}, key="b", delay="1h")
    done = subprocess.run(
        [sys.executable, "-m", "twiceproof", "relay", "shop:app", "--until-idle"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(r"stopped after 1 messages; others wait, and the next is due in 3[56]\d\d s", done.stderr)


@pytest.mark.slow
def test_the_relay_command_publishes_until_it_is_told_to_stop(tmp_path: Path) -> None:
    log = tmp_path / "log"
    (tmp_path / "shop.py").write_text(SHOP.format(log=str(log), db=tmp_path / "shop.db"))
    with App(f"sqlite:///{tmp_path}/shop.db") as app:
        app.broker("main", StandInBroker())
        app.route("orders.*", to="main")
        app.send("orders.paid", {"order": 17}, key="a")
        process = subprocess.Popen(
            [sys.executable, "-m", "twiceproof", "relay", "shop:app"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        assert "publishing to main" in process.stderr.readline()
        app.send("orders.paid", {"order": 18}, key="b")
        while not log.exists() or log.read_text() != "a\nb\n":
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=20)[1]
    assert process.returncode == 0
    assert "stopped after 2 messages" in rest


def test_the_messages_commands_list_show_resend_and_drop(tmp_path: Path) -> None:
    from twiceproof.brokers.base import Refused

    url, broker = f"sqlite:///{tmp_path}/shop.db", StandInBroker()
    broker.always["a"] = Refused("no such queue", final=True)

    def run(*words: str) -> str:
        done = CliRunner().invoke(cli, ["messages", *words, "--store", url])
        assert done.exit_code == 0, done.output
        return done.output

    with App(url) as app:
        app.broker("main", broker)
        app.route("orders.*", to="main")
        assert "No messages" in run("list")
        for key in ("a", "b"):
            app.send("orders.paid", {"order": key}, key=key)
        app.relay().run(until_idle=True)
        assert "no such queue" in run("list")
        assert "orders.paid" in run("list", "--state", "sent")
        assert '"order"' in run("show", "a")
        assert "messages resend a" in run("show", "a")
        assert "refused: no such queue" in run("show", "a")
        assert "pending" in run("resend", "a", "--by", "ann")
        app.relay().run(until_idle=True)
        renamed = run("resend", "a", "--as-new", "--by", "ann")
        assert "has the new key tp_" in renamed and "dropped" in run("show", "a")
        assert "dropped" in run("drop", renamed.split()[-6].rstrip(";"), "--yes")
        assert '"counts"' in run("list", "--json")


def test_messages_are_counted_by_state_target_and_outcome(tmp_path: Path) -> None:
    from twiceproof.brokers.base import Refused
    from twiceproof.flows.history.queries import count_states
    from twiceproof.operations import block
    from twiceproof.server.monitoring import WorkMetrics

    broker = StandInBroker()
    broker.always["a"] = Refused("no such queue", final=True)
    with App(f"sqlite:///{tmp_path}/shop.db") as app:
        app.broker("main", broker)
        app.route("orders.*", to="main")
        for key in ("a", "b"):
            app.send("orders.paid", {}, key=key)
        worker, metrics = app.worker(), WorkMetrics()
        worker.run(until_idle=True)
        app.send("orders.paid", {}, key="c", delay=60)
        metrics.set_counts(block(count_states(app.store)))
        text = metrics.text(worker).decode()
    assert 'twiceproof_messages{state="pending"} 1.0' in text
    assert 'twiceproof_messages{state="parked"} 1.0' in text
    assert 'twiceproof_messages_relayed_total{outcome="published",target="main"} 1.0' in text
    assert 'twiceproof_messages_relayed_total{outcome="parked",target="main"} 1.0' in text
    assert "twiceproof_messages_oldest_seconds 0.0\n" not in text
