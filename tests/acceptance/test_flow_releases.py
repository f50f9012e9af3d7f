"""A release that goes live under load, and runs that outlive releases: real processes, on SQLite and PostgreSQL."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.unit.declared.releasing import make_live
from twiceproof import App
from twiceproof.stores.base import Store
from twiceproof.stores.open import open_store

SECRET = "whsec_" + "a" * 32
PROGRAM = str(Path(sys.executable).with_name("twiceproof"))
FLOW = """\
flow: greet
input: {id: text}
key: greet:{id}
on:
  - webhook: generic
    name: greet
    secret: env:GREET_SECRET
    options: {id: id, signature: X-Signature}
    give: {id: =id}
  - every: 1s
    give: {id: ="tick " + tick}
steps:
  - set: {said: NAME}
returns: =said
"""
SHOP = """
import hmac, json, os, sys, time
from twiceproof import App, load_flows

app = App(os.environ["GREET_STORE"])
greet = load_flows(app, "flows")["greet"]


@app.poll(every="1s", start=greet)
def news(since):
    return [f"poll {time.time():.3f}"]


def post(name):
    body = json.dumps({"id": name}).encode()
    signature = hmac.new(os.environ["GREET_SECRET"].encode(), body, "sha256").hexdigest()
    headers = [("x-signature", signature), ("content-type", "application/json")]
    assert app.receive("greet", body, headers).status == 200


if __name__ == "__main__":
    door, burst = {"call": greet.start, "webhook": post}[sys.argv[1]], int(sys.argv[2])
    print("ready", flush=True)
    sys.stdin.readline()
    begun = time.time()
    for number in range(10_000):
        if number >= burst:
            time.sleep(0.05)  # a steady trickle after the burst
        if time.time() - begun > float(sys.argv[3]):
            break
        at = time.time()
        door(f"{sys.argv[1]} {number}")
        print(json.dumps([f"greet:{sys.argv[1]} {number}", at]), flush=True)
"""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.server)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db" if request.param == "sqlite" else request.getfixturevalue("postgres_dsn")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    made = open_store(url)
    yield made
    made.close()


class Shop:
    """A directory from which several processes are started."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._environment = {**os.environ, "GREET_STORE": url, "GREET_SECRET": SECRET}
        (folder / "flows").mkdir()
        self.write("file")
        (folder / "shop.py").write_text(SHOP)

    def write(self, name: str, text: str = FLOW) -> None:
        (self._folder / "flows/greet.flow.yaml").write_text(text.replace("NAME", name))

    @contextmanager
    def process(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with (self._folder / "errors").open("a") as errors:
            made = subprocess.Popen(
                words, cwd=self._folder, env=self._environment, stderr=errors, start_new_session=True, **pipes
            )
        try:
            yield made
        finally:
            made.send_signal(signal.SIGTERM)
            made.wait(30)
            for pipe in (made.stdin, made.stdout):
                pipe.close()

    def starter(self, door: str, burst: int, seconds: float):
        return self.process(sys.executable, "shop.py", door, str(burst), str(seconds))

    def run(self, *words: str) -> None:
        done = subprocess.run(
            [PROGRAM, *words], cwd=self._folder, env=self._environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture
def shop(tmp_path: Path, url: str) -> Shop:
    return Shop(tmp_path, url)


def start_over_http(address: str, name: str) -> None:
    place = urlsplit(address)
    with closing(http.client.HTTPConnection(place.hostname, place.port, timeout=30)) as connection:
        connection.request("POST", "/v1/runs/greet", json.dumps(name), {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.status in (200, 202), answer.read()


def lines(process: subprocess.Popen[str]) -> list[tuple[str, float]]:
    assert process.stdout is not None
    return [tuple(json.loads(line)) for line in process.stdout]


def test_each_run_of_a_burst_is_on_one_release_and_later_ones_on_the_new(shop, store, url):
    make_live(store, FLOW.replace("NAME", "one"))
    told: list[tuple[str, float]] = []
    serve = (PROGRAM, "serve", "shop:app", "--port", "0", "--json")
    with (
        shop.process(*serve) as server,
        shop.process(PROGRAM, "work", "shop:app"),
        shop.starter("call", 20, 5.0) as calls,
        shop.starter("webhook", 20, 5.0) as hooks,
    ):
        address = json.loads(server.stdout.readline())["url"]
        for process in (calls, hooks):
            assert process.stdout.readline() == "ready\n"
            process.stdin.write("go\n")
            process.stdin.flush()
        for number in range(5):
            told.append((f"greet:http {number}", time.time()))
            start_over_http(address, f"http {number}")
        make_live(store, FLOW.replace("NAME", "two"))
        promoted = time.time()
        number = 5
        while time.time() < promoted + 4:
            told.append((f"greet:http {number}", time.time()))
            start_over_http(address, f"http {number}")
            number += 1
        told += lines(calls) + lines(hooks)
    with App(store) as app:
        runs = {run.key: run for run in app.runs(flow="greet", limit=10_000)}
    assert len(told) >= 50 and {key for key, _ in told} <= runs.keys()
    assert {run.version for run in runs.values()} == {"r1", "r2"}
    late = [key for key, began in told if began > promoted + 1.0]
    late += [key for key, run in runs.items() if run.created_at > promoted + 1.0]
    assert {runs[key].version for key in late} == {"r2"}
    for door in ("http", "call", "webhook", "tick", "poll"):
        assert any(key.startswith(f"greet:{door}") for key in late), door
        early = [key for key, run in runs.items() if key.startswith(f"greet:{door}") and run.created_at < promoted]
        assert {runs[key].version for key in early} <= {"r1"}


WAITS = FLOW.replace("  - set:", "  - {sleep: 2s}\n  - set:").replace("  - every: 1s\n", "  - every: 1d\n")


def test_a_run_that_waits_ends_on_its_release_after_all_workers_were_restarted(shop, store):
    shop.write("file", WAITS)
    make_live(store, WAITS.replace("NAME", "one"))
    with shop.starter("call", 1, 0.5) as starter:
        assert starter.stdout.readline() == "ready\n"
        starter.stdin.write("go\n")
        starter.stdin.flush()
        (key, _), *_ = lines(starter)
    shop.run("work", "shop:app", "--until-idle")
    for name in ("two", "three", "four"):
        make_live(store, WAITS.replace("NAME", name).replace("sleep: 2s", "sleep: 1s"))
    shop.write("another file")
    deadline = time.monotonic() + 60
    with App(store) as app:
        while app.attach(flow="greet", key=key).state != "done" and time.monotonic() < deadline:
            shop.run("work", "shop:app", "--until-idle")
        run = app.attach(flow="greet", key=key)
        assert run.result() == "one"
