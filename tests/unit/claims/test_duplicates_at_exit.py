"""A script that ends without closing its app: its last counts, and what must not keep it from ending."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from twiceproof import App
from twiceproof.claims.duplicates import KIND, most_blocked
from twiceproof.operations import block

FORKS = "ignore:This process:DeprecationWarning"  # from 3.12 on Python warns of a fork beside threads
BEGIN = """
import atexit, os, threading
from twiceproof import App

app = App(f"sqlite:///{os.getcwd()}/ledger.db?durability=process")

@app.once(key="order:{n}")
def pay(n):
    return n

pay(1)
"""

REFUSE = """
def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")
"""

# As Python 3.12 and later have it once they are ending.
NO_THREADS = f"""
{REFUSE}
atexit.register(lambda: setattr(threading.Thread, "start", refuse))
"""


def ended(folder: Path, script: str) -> str:
    """What it complained about. That it ends at all is told by the limit, far above what it may take."""
    command = [sys.executable, "-W", FORKS, "-c", BEGIN + script]
    told = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=30, check=False)
    assert told.returncode == 0, told.stderr
    return told.stderr


def counted(folder: Path) -> list[tuple[str, int]]:
    """By process, and what each of them told."""
    with App(f"sqlite:///{folder}/ledger.db") as app:
        found = [(row.key, row.count) for row in block(most_blocked(app.store, "default"))]
        assert len(app.store.scan(KIND).block().records) <= 2
        return found


@pytest.mark.parametrize("more", ["", NO_THREADS], ids=["threads", "no more threads"])
@pytest.mark.parametrize(
    "repeat", ["pay(1)", "threading.Thread(target=pay, args=(1,)).start()"], ids=["main", "thread"]
)
def test_a_script_that_never_closes_its_app_has_its_last_duplicates_counted(
    tmp_path: Path, repeat: str, more: str
) -> None:
    assert ended(tmp_path, f"{more}\n{repeat}") == ""
    assert counted(tmp_path) == [("order:1", 1)]


def test_a_duplicate_is_counted_that_comes_when_there_are_no_more_threads(tmp_path: Path) -> None:
    """Python 3.12 refuses them as soon as the main thread has ended, while others are at work."""
    script = f"""
{REFUSE}
def late():
    threading.main_thread().join()
    threading.Thread.start = refuse
    pay(1)

threading.Thread(target=late).start()
"""
    assert ended(tmp_path, script) == ""
    assert counted(tmp_path) == [("order:1", 1)]


def test_an_app_that_nobody_holds_any_more_is_heard_too(tmp_path: Path) -> None:
    assert ended(tmp_path, "pay(1)\ndel app, pay") == ""
    assert counted(tmp_path) == [("order:1", 1)]


POOL = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
with ProcessPoolExecutor(1, get_context("fork")) as pool:
    assert [pool.submit(pay, 1).result() for _ in range(3)] == [1, 1, 1]
"""
CHILD = """
from multiprocessing import get_context
child = get_context("fork").Process(target=lambda: [pay(1) for _ in range(3)])
child.start()
child.join()
assert child.exitcode == 0
"""


@pytest.mark.parametrize("script", [POOL, CHILD], ids=["pool", "process"])
def test_the_children_of_a_script_have_their_last_duplicates_counted(tmp_path: Path, script: str) -> None:
    assert ended(tmp_path, script + "pay(1)") == ""
    assert counted(tmp_path) == [("order:1", 4)]


def test_a_store_that_does_not_answer_does_not_keep_a_child_from_ending(tmp_path: Path) -> None:
    silent = "pay(1) or 1, setattr(app.store.engine, 'commit', lambda batches: threading.Event().wait())"
    said = ended(tmp_path, CHILD.replace("[pay(1) for _ in range(3)]", f"({silent})"))
    assert "the store does not answer" in said
    assert counted(tmp_path) == []


def test_a_closed_app_has_nothing_left_to_tell(tmp_path: Path) -> None:
    assert ended(tmp_path, "pay(1)\napp.close()") == ""
    assert counted(tmp_path) == [("order:1", 1)]


@pytest.mark.parametrize("more", ["", NO_THREADS], ids=["threads", "no more threads"])
def test_a_store_that_does_not_answer_does_not_keep_a_script_from_ending(tmp_path: Path, more: str) -> None:
    said = ended(tmp_path, f"{more}\npay(1)\napp.store.engine.commit = lambda batches: threading.Event().wait()")
    assert "the store does not answer" in said
    assert counted(tmp_path) == []


def test_a_store_that_is_gone_is_complained_about_once(tmp_path: Path) -> None:
    said = ended(tmp_path, "pay(1)\napp.store.close()")
    assert said.count("could not be counted") == 1
    assert "Traceback" not in said


def test_a_forked_child_that_ends_tells_its_own_duplicates_and_not_its_parents(tmp_path: Path) -> None:
    """It goes through the same end as its parent: `os._exit` is not everybody's way."""
    script = """
pay(1)
for count in (0, 2):
    child = os.fork()
    if child == 0:
        for _ in range(count):
            pay(1)
        raise SystemExit(0)
    os.waitpid(child, 0)
"""
    assert ended(tmp_path, script) == ""
    assert counted(tmp_path) == [("order:1", 3)]
