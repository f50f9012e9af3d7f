"""The page for makers: its commands are run in their order, and print what it shows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.docs.blocks import ROOT, blocks, commands, says
from tests.unit.effects.mailbox import mailbox

PAGE = ROOT / "docs/how-to/first-flow-in-a-file.md"
PROGRAM = Path(sys.executable).with_name("twiceproof")
SERVER = "127.0.0.1:8025"  # of the page; the test has a port of its own


def texts(language: str) -> list[str]:
    return [block.text for block in blocks(PAGE) if block.language == language]


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TWICEPROOF_")}
    return {**kept, "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}


def follow(folder: Path, number: int) -> str:
    """Type the commands of one block of the page, and compare what each says."""
    heard = ""
    for typed, said in commands([block for block in blocks(PAGE) if block.language == "console"][number]):
        done = subprocess.run(
            ["bash", "-c", typed], cwd=folder, env=environment(), capture_output=True, text=True, timeout=600
        )
        heard = done.stdout
        assert says(said, heard), (typed, heard, done.stderr)
    return heard


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "flows").mkdir()
    return tmp_path


def written(folder: Path, *, corrected: bool) -> Path:
    whole, steps, _ = texts("yaml")
    if corrected:
        head, _, rest = whole.partition("steps:\n")
        whole = f"{head}{steps}tests:\n" + rest.partition("tests:\n")[2]
    file = folder / "flows/welcome.flow.yaml"
    file.write_text(whole)
    return file


def test_lint_finds_both_mistakes_and_then_none(folder):
    written(folder, corrected=False)
    follow(folder, 0)
    written(folder, corrected=True)
    follow(folder, 1)


@pytest.mark.slow
def test_the_flow_is_safe_until_it_is_broken_on_purpose(folder):
    file = written(folder, corrected=True)
    follow(folder, 2)
    file.write_text(file.read_text().replace("repeat: never", "repeat: safe"))
    assert "mail to ada@example.com" in follow(folder, 3)


@pytest.mark.slow
def test_it_goes_live_is_started_once_by_its_form_is_changed_and_goes_back(folder):
    file = written(folder, corrected=True)
    with mailbox() as (box, port):
        (folder / "flows/connections.yaml").write_text(texts("yaml")[2].replace(SERVER, f"127.0.0.1:{port}"))
        table = texts("sh")[1].splitlines()[0].replace("python ", f"{sys.executable} ", 1)
        subprocess.run(["bash", "-c", table], cwd=folder, check=True, timeout=60)
        follow(folder, 4)
        with served(folder) as url:
            first, second = start(url), start(url)
        assert (first["started"], first["state"], second["started"]) == (True, "done", False)
        assert [mail["to"] for mail in box.mails] == ["ada@example.com"]
        file.write_text(file.read_text().replace("good to have you here", "good to have you with us"))
        follow(folder, 5)
        # As step 7 has it, for the second time.
        for words in (("test", "flows", "--store", "sqlite:///twiceproof.db"), ("promote", "welcome")):
            subprocess.run([PROGRAM, "flows", *words], cwd=folder, env=environment(), check=True, timeout=600)
        follow(folder, 6)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    (typed,) = [text for text in texts("sh") if text.startswith("twiceproof serve")]
    words = [*typed.split(), "--port", "0", "--json"]
    with subprocess.Popen(
        words, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as server:
        try:
            assert server.stdout is not None
            yield json.loads(server.stdout.readline())["url"]
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)


def start(url: str) -> dict[str, object]:
    customer = {"id": "c1", "email": "ada@example.com", "name": "Ada"}
    request = Request(
        f"{url}/v1/runs/welcome?wait=30s", json.dumps(customer).encode(), {"content-type": "application/json"}
    )
    with urlopen(request, timeout=60) as answer:
        return dict(json.loads(answer.read()))
