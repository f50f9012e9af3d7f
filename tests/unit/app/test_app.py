"""The app: opens the store, wires the parts, closes them."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import math
import os
import subprocess
import sys
import threading
import traceback
import weakref
from pathlib import Path
from typing import Any

import pytest

from twiceproof import App, InProgress, KeyRefused, Misuse, NeedsReview, PriorFailure, StoreError, StoreUnavailable
from twiceproof.prove.clocks import ManualClock
from twiceproof.settings import Settings
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.memory import MemoryEngine

SCRIPT = """
from pathlib import Path
from twiceproof import App

app = App({store})

@app.once(key="order:{{order}}")
def pay(order: int) -> int:
    with Path(__file__).with_name("paid").open("a") as paid:
        paid.write("x")
    return order

pay(1)
"""


def play(folder: Path, store: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same script once more, from another directory each time, as a shell, cron and a service start it."""
    script = folder / "project" / "shop.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text(SCRIPT.format(store=store))
    elsewhere = folder / f"elsewhere-{len(list(folder.iterdir()))}"
    elsewhere.mkdir()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TWICEPROOF_")}
    return subprocess.run(
        [sys.executable, str(script)],
        cwd=elsewhere,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


@pytest.mark.parametrize(
    ("store", "environment", "name"),
    [
        ("", {}, "twiceproof.db"),
        ('"sqlite:///ledger.db"', {}, "ledger.db"),
        ("", {"TWICEPROOF_STORE": "sqlite:///set.db?durability=process"}, "set.db"),
    ],
    ids=["default", "in code", "environment"],
)
def test_a_script_has_one_ledger_whatever_directory_it_is_started_in(
    tmp_path: Path, store: str, environment: dict[str, str], name: str
) -> None:
    """From cron it would make a new one, and pay again."""
    first, second = (play(tmp_path, store, **environment) for _ in range(2))
    ledger = tmp_path / "project" / name
    assert (tmp_path / "project" / "paid").read_text() == "x"
    assert ledger.stat().st_mode & 0o077 == 0
    assert f"this is a new ledger: {ledger}; if" in first.stderr
    assert second.stderr == ""


def test_a_module_that_is_imported_meets_the_ledger_of_the_same_script(tmp_path: Path) -> None:
    """As `twiceproof work shop:app` does."""
    play(tmp_path, '"sqlite:///ledger.db"')
    subprocess.run([sys.executable, "-c", "import shop"], cwd=tmp_path / "project", timeout=60, check=True)
    assert (tmp_path / "project" / "paid").read_text() == "x"


def test_a_ledger_that_is_named_by_its_whole_path_is_made_without_a_word(tmp_path: Path) -> None:
    """The twin: who wrote all of it knows where it is."""
    assert play(tmp_path, f'"sqlite:///{tmp_path}/whole.db"').stderr == ""
    assert (tmp_path / "whole.db").exists()


@pytest.mark.parametrize("way", ["-c", "-"])
def test_without_a_file_a_relative_path_is_taken_from_the_current_directory(tmp_path: Path, way: str) -> None:
    code = "from twiceproof import App; App('sqlite:///here.db').close()"
    words = [way, code] if way == "-c" else [way]
    subprocess.run([sys.executable, *words], cwd=tmp_path, input=code, text=True, timeout=60, check=True)
    assert (tmp_path / "here.db").exists()


def test_a_suggested_command_leads_to_the_same_ledger_from_this_directory(tmp_path: Path, monkeypatch: Any) -> None:
    script = tmp_path / "project" / "shop.py"
    script.parent.mkdir()
    made = compile('app = App("sqlite:///shop.db")', str(script), "exec")
    for directory, told in ((script.parent, "sqlite:///shop.db"), (tmp_path, f"sqlite:///{script.parent}/shop.db")):
        monkeypatch.chdir(directory)
        space: dict[str, Any] = {"App": App, "__file__": str(script)}
        exec(made, space)
        with space["app"] as app, pytest.raises(NeedsReview) as review:

            @app.once(key="order:{order}")
            def pay(order: int) -> None:
                raise TimeoutError("no answer")

            pay(len(str(directory)))
        assert f"--store {told} " in str(review.value)
        assert app.settings.store == told


def test_what_one_app_recorded_the_next_one_replays(tmp_path: Path) -> None:
    runs: list[int] = []
    for _ in range(2):
        with App(f"sqlite:///{tmp_path}/a.db") as app:

            @app.once(key="order:{order}")
            def pay(order: int) -> int:
                runs.append(order)
                return len(runs)

            assert pay(1) == 1


def test_an_app_takes_a_store_as_it_is() -> None:
    clock = ManualClock()
    store = GroupedStore(MemoryEngine(clock), clock=clock)
    with App(store, clock=clock) as app:
        assert app.store is store


def test_a_closed_app_leaves_no_thread_behind(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with App(f"sqlite:///{tmp_path}/a.db") as app:

        @app.once(key="order:{order}")
        def pay(order: int) -> int:
            return order

        pay(1)
    assert [thread for thread in threading.enumerate() if thread not in before] == []


def test_an_app_that_nobody_closed_goes_with_its_threads(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("twiceproof.flows.engine.ledger_flusher.LINGER", 5)
    before = set(threading.enumerate())

    def leave_open() -> tuple[weakref.ref[App], list[threading.Thread]]:
        app = App(f"sqlite:///{tmp_path}/a.db")

        @app.step(repeat="safe")
        async def pack(order: int) -> int:
            return order

        @app.flow(key="order:{order}")
        async def ship(order: int) -> int:
            return await pack(order)

        assert asyncio.run(ship(1)) == 1
        return weakref.ref(app), [thread for thread in threading.enumerate() if thread not in before]

    app, threads = leave_open()
    assert {thread.name for thread in threads} == {"twiceproof-store", "twiceproof-heartbeat", "twiceproof-flusher"}
    gc.collect()
    assert app() is None
    for _ in range(400):  # what one of them was just using goes with the next collection
        threads = [thread for thread in threads if thread.is_alive()]
        if threads:
            gc.collect()
            threads[0].join(0.05)
    assert threads == []


def test_closing_twice_does_no_harm() -> None:
    app = App("memory://")
    app.close()
    app.close()


def test_operations_are_known_by_name() -> None:
    with App("memory://") as app:

        @app.once(key="order:{order}", name="charge")
        def pay(order: int) -> None: ...

        assert app.operations == {"charge": pay.once}


@pytest.mark.parametrize("name", ["", "a/b", "a b", "x" * 129, "é"])
def test_an_operation_needs_a_name_that_is_one(name: str) -> None:
    with App("memory://") as app, pytest.raises(Misuse, match="operation"):
        app.claim(name, "order:1")


def test_a_lambda_needs_a_name() -> None:
    with App("memory://") as app, pytest.raises(Misuse, match="A lambda has no name of its own; give one"):
        app.once(key="order:{order}")(lambda order: None)


NO_JSON = [math.nan, [1, {"a": math.inf}], object(), {1, object()}]


@pytest.mark.parametrize("result", NO_JSON, ids=["nan", "inf inside", "object", "set of objects"])
def test_a_result_that_has_no_json_form_is_refused_before_anything_is_settled(result: Any) -> None:
    with App("memory://") as app:

        @app.once(key="order:{order}")
        def pay(order: int) -> Any:
            raise TimeoutError

        @app.step(repeat="never")
        def charge(order: int) -> Any:
            raise TimeoutError

        @app.flow(key="order:{order}")
        def sell(order: int) -> Any:
            return charge(order)

        for call in (pay, sell):
            with pytest.raises((TimeoutError, NeedsReview)):
                call(1)
        with pytest.raises(Misuse, match="null for nothing"):
            app.settle("pay", "order:1", "happened", by="eve", result=result)
        with pytest.raises(Misuse, match="null for nothing"):
            app.settle_run("sell/order:1", "happened", by="eve", result=result)
        with pytest.raises(NeedsReview):
            pay(1)
        app.settle("pay", "order:1", "happened", by="eve", result={"paid": [None, 1.5]})
        app.settle_run("sell/order:1", "happened", by="eve", result={"paid": None})
        assert (pay(1), sell(1)) == ({"paid": [None, 1.5]}, {"paid": None})


def test_a_person_settles_by_operation_and_key() -> None:
    with App("memory://") as app:

        @app.once(key="order:{order}")
        def pay(order: int) -> str:
            raise TimeoutError

        for order in (1, 2, 3):
            with pytest.raises(NeedsReview):
                pay(order)
        app.settle("pay", "order:1", "happened", by="eve", result="receipt 5")
        app.settle("pay", "order:2", "did-not-happen", by="eve")
        app.settle("pay", "order:3", "abandon", by="eve", note="cancelled by the customer")
        assert pay(1) == "receipt 5"
        with pytest.raises(NeedsReview) as told:  # it ran again
            pay(2)
        assert isinstance(told.value.__cause__, TimeoutError)
        with pytest.raises(PriorFailure, match="cancelled by the customer"):
            pay(3)
        with pytest.raises(Misuse, match="no such claim"):
            app.settle("pay", "order:4", "happened", by="eve")


SECRET = "s3cr3t-pass"
URLS = [
    f"mysql://ann:{SECRET}@db/x",
    f"mysql+x://ann:{SECRET}@db/x",
    f"sqlite://ann:{SECRET}@db/x",
    f"postgresql://ann:{SECRET}@127.0.0.1:1/x",
    f"redis://:{SECRET}@127.0.0.1:1/0",
    f"ann:{SECRET}@db:5432/x",
    f"//ann:{SECRET}@db/x",
]


@pytest.mark.parametrize("url", URLS)
def test_no_error_shows_the_stores_password(url: str) -> None:
    clock = ManualClock()
    with pytest.raises((Misuse, StoreError)) as told, App(url, clock=clock) as app:
        app.store.examine()
    seen: BaseException | None = told.value
    while seen is not None:
        assert SECRET not in str(seen)
        assert SECRET not in repr(seen)
        seen = seen.__cause__ or seen.__context__


def test_a_busy_claims_error_names_its_owner_and_no_secret() -> None:
    with App("memory://") as app, app.claim("pay", "order:1"):
        again = app.claim("pay", "order:1")
        with pytest.raises(InProgress) as told:
            contextvars.Context().run(again.__enter__)  # as another caller
    assert told.value.owner in str(told.value)


def test_a_closed_app_refuses_work_before_anything_is_done(tmp_path: Path) -> None:
    app, done = App(f"sqlite:///{tmp_path}/closed.db"), []

    @app.once(key="{order}")
    def pay(order: int) -> int:
        done.append(order)
        return order

    pay(1)
    app.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        pay(2)
    assert done == [1]


def test_the_settings_show_no_password() -> None:
    assert "s3cret" not in repr(Settings(store="postgresql://me:s3cret@host/db"))


@pytest.mark.parametrize("argument", ["owner", "link"])
def test_a_poisoned_owner_or_link_is_refused_before_anything_is_written(argument: str) -> None:
    with App("memory://") as app:
        with pytest.raises(KeyRefused):
            app.claim("ship", "order:1", **{argument: "\ud800"})
        assert app.store.scan("claim").block().records == []


@pytest.mark.parametrize(
    ("store", "hint"),
    [
        ("sqlite:///{}/shop.db", "twiceproof --store sqlite:///{}/shop.db claims show"),
        ("memory://", "Look at it with: twiceproof claims show"),
    ],
)
def test_a_hint_can_be_pasted_and_holds_no_password(store: str, hint: str, tmp_path: Path) -> None:
    with App(store.format(tmp_path)) as app:

        @app.once(key="{order}")
        def pay(order: int) -> int:
            raise TimeoutError

        for _ in range(2):  # who was at it, and who comes later
            with pytest.raises(NeedsReview) as told:
                pay(1)
            assert hint.format(tmp_path) in str(told.value)


@pytest.mark.parametrize("store", [Path("shop.db"), 5, b"sqlite:///shop.db"])
def test_what_is_neither_a_url_nor_a_store_is_refused_at_once(store: Any) -> None:
    with pytest.raises(Misuse, match="is neither a URL nor a store"):
        App(store)


@pytest.mark.parametrize("url", ["hooks.example.com", "ftp://hooks.example.com", "localhost:8000"])
def test_an_address_that_no_browser_can_call_is_refused_when_the_app_is_made(url: str) -> None:
    """Found out in a run, it would fail that run, at the first callback."""
    with pytest.raises(Misuse, match="cannot be called from outside; write it like https"):
        App("memory://", url=url)


@pytest.mark.parametrize("url", ["https://hooks.example.com", "http://127.0.0.1:8000/", ""])
def test_an_address_that_can_be_called_is_taken(url: str) -> None:
    with App("memory://", url=url) as app:
        assert app.settings.url == url


@pytest.mark.parametrize("url", ["sqlite:shop.db", "sqlite:/shop.db", "sqlite://shop.db", "sqlite:///"])
def test_a_sqlite_url_with_too_few_slashes_opens_no_other_file(url: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Misuse, match="three slashes"):
        App(url)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sqlite:///shop.db?durability=fast", "durability='fast' is not valid; use one of power, process."),
        ("sqlite:///shop.db?speed=fast", "speed= is not known; this store has: durability."),
    ],
)
def test_a_stores_option_that_means_nothing_is_refused_with_those_that_do(url: str, told: str) -> None:
    with pytest.raises(Misuse) as refused:
        App(url)
    assert told in str(refused.value)


def test_a_state_that_runs_do_not_have_is_refused() -> None:
    """A misspelt one must not look as if nothing waited."""
    with App("memory://") as app:
        assert app.runs(state="review") == []
        with pytest.raises(Misuse, match="'reviews' is no state of a run; say one of review, held"):
            app.runs(state="reviews")


def test_a_sqlite_ledger_in_memory_is_refused_and_a_memory_ledger_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be a file of that name, looked for as memory by every connection of its own."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Misuse, match="write memory://"):
        App("sqlite:///:memory:")
    assert list(tmp_path.iterdir()) == []
    App("memory://").close()


@pytest.mark.parametrize(
    "url", ["redis://[::1", "postgresql://u:sesame[x@127.0.0.1/shop", "postgresql://u:sesame\u2100@127.0.0.1/shop"]
)
def test_a_url_that_cannot_be_read_is_told_so_and_never_quoted(url: str) -> None:
    """A password may be the reason, and Python's own words for it quote all of it."""
    with pytest.raises(Misuse, match="percent-encoded") as told:
        App(url)
    shown = "".join(traceback.format_exception(told.value))
    assert "sesame" not in shown.replace(repr(url), "")
    assert told.value.__suppress_context__
