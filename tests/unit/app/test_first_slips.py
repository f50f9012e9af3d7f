"""Slips of the first hour: each is told where it is made, with what to write instead."""

from __future__ import annotations

import code
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import twiceproof
from tests.docs.blocks import ROOT, Block, blocks
from twiceproof import App
from twiceproof.errors import Misuse, StoreError
from twiceproof.prove.fixture import prove
from twiceproof.prove.worlds.table import TableWorld

app = App("memory://")
done: list[str] = []


def order_key(order: dict[str, Any]) -> str:
    return f"order:{order['id']}"


# -- decorators without parentheses --------------------------------------------------------------


@pytest.mark.parametrize("decorator", ["flow", "once"])
def test_a_decorator_that_needs_a_key_says_so_where_it_stands(decorator: str) -> None:
    bare: Callable[..., Any] = getattr(app, decorator)
    with pytest.raises(Misuse, match=rf'@app\.{decorator} needs a key; write it as @app\.{decorator}\(key="order'):

        @bare
        def ship(order: dict[str, Any]) -> None: ...

    with pytest.raises(Misuse, match="needs a key"):

        @bare
        @functools.lru_cache
        def cached(order: dict[str, Any]) -> None: ...

        cached({"id": 1})

    with pytest.raises(Misuse, match="needs a key"):

        class Shop:
            @bare
            async def ship(self, order: dict[str, Any]) -> None: ...


def test_it_says_so_in_a_module_and_at_a_prompt() -> None:
    for decorator in ("flow", "once"):
        text = f"@app.{decorator}\ndef ship(order): ..."
        for names in ({"app": app}, {"app": app, "ship": order_key}):  # the name may be another one's already
            with pytest.raises(Misuse, match="needs a key"):
                exec(compile(text, "shop.py", "exec"), names)


def _made(field: str) -> Callable[..., str]:
    def key(order: dict[str, Any]) -> str:
        return f"{field}:{order[field]}"

    return key


class Keys:
    @staticmethod
    def order(order: dict[str, Any]) -> str:
        return order_key(order)


@pytest.mark.parametrize(
    "key",
    [order_key, _made("id"), Keys.order, lambda order: order_key(order), functools.partial(order_key)],
    ids=["function", "made", "method", "lambda", "partial"],
)
def test_a_function_may_be_the_key_with_or_without_its_name(key: Callable[..., str]) -> None:
    def local(order: dict[str, Any]) -> str:
        return order_key(order)

    for one in (key, local):
        with App("memory://") as other:

            @other.flow(one)
            def ship(order: dict[str, Any]) -> int:
                return 1

            @other.once(key=one)
            def send(order: dict[str, Any]) -> int:
                return 2

            assert (ship({"id": 1}), send({"id": 1})) == (1, 2)


def test_a_schedule_and_a_webhook_without_parentheses_say_what_they_need() -> None:
    every: Any = app.every
    with pytest.raises(Misuse, match=r'@app\.every needs a time; write it as @app\.every\("15m"\)'):

        @every
        def tidy_up() -> None: ...

    webhook: Any = app.webhook
    with pytest.raises(Misuse, match=r'@app\.webhook needs a source; write it as @app\.webhook\("stripe"'):

        @webhook
        def paid(event: Any) -> None: ...


def test_a_step_needs_no_parentheses() -> None:
    @app.step
    def greet(name: str) -> str:
        return f"Dear {name}"

    assert greet("Ada") == "Dear Ada"


@pytest.mark.parametrize("decorator", ["step", "flow", "once"])
def test_a_lambda_is_asked_for_a_name_and_may_have_one(decorator: str) -> None:
    said: dict[str, Any] = {} if decorator == "step" else {"key": "x:{order}"}
    declare: Callable[..., Any] = getattr(app, decorator)
    with pytest.raises(Misuse, match=rf"A lambda has no name of its own; give one: @app\.{decorator}\(…, name=…\)"):
        declare(**said)(lambda order: order)
    assert declare(**said, name=f"named-{decorator}")(lambda order: order)("a") == "a"


# -- stores --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "drop", "write"),
    [
        ("postgresql+psycopg://ada:secret@localhost/shop", r"\+psycopg", "postgresql://"),
        ("postgresql+psycopg2://localhost/shop", r"\+psycopg2", "postgresql://"),
        ("postgres+asyncpg://localhost/shop", r"\+asyncpg", "postgres://"),
        ("sqlite+aiosqlite:///shop.db", r"\+aiosqlite", "sqlite://"),
        ("rediss+asyncio://localhost", r"\+asyncio", "rediss://"),
    ],
)
def test_a_url_with_a_driver_in_it_says_what_to_drop(url: str, drop: str, write: str) -> None:
    with pytest.raises(Misuse, match=rf"drop {drop}, and write {write}…") as told:
        App(url)
    assert "secret" not in str(told.value)
    with pytest.raises(Misuse, match=rf"drop {drop}, and write {write}…"):
        prove(shipping, {"id": 1}, world=lambda: done, store=url)
    with pytest.raises(Misuse, match=rf"drop {drop}, and write {write}…"):
        TableWorld(f"{url}#orders")


def test_a_url_of_a_store_that_nobody_knows_is_told_those_that_are_known() -> None:
    with pytest.raises(
        Misuse, match=r"'oracle\+oracledb' is not a store that twiceproof knows; use one of .*memory://"
    ):
        App("oracle+oracledb://localhost/shop")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_directory_that_takes_no_files_is_not_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"/proc/twiceproof\.db cannot be opened for writing"):
        App("sqlite:////proc/twiceproof.db")
    with pytest.raises(StoreError, match=r"The directory .*nowhere does not exist; create it"):
        App(f"sqlite:///{tmp_path}/nowhere/twiceproof.db")


# -- prove ---------------------------------------------------------------------------------------


@app.step(repeat="never")
def ship_it(order: dict[str, Any]) -> None:
    done.append(f"shipped {order['id']}")


@app.flow(key=order_key)
def shipping(order: dict[str, Any]) -> None:
    ship_it(order)


@pytest.mark.slow
@pytest.mark.parametrize("store", ["memory", "memory://"])
def test_plays_may_keep_their_ledgers_in_memory_by_one_word(store: str) -> None:
    report = prove(shipping, {"id": 1}, world=lambda: done, store=store, depth=1)
    assert report.good and report.store == "memory"


# -- runs ----------------------------------------------------------------------------------------


def test_runs_in_every_state_may_be_asked_for_by_a_word() -> None:
    with App("memory://") as other:

        @other.flow(key=order_key)
        def ship(order: dict[str, Any]) -> None: ...

        ship({"id": 1})
        ship.start({"id": 2})
        assert len(other.runs(state="all")) == len(other.runs()) == 2
        assert len(other.runs(state="done")) == 1


# -- at a prompt ---------------------------------------------------------------------------------


def test_the_package_tells_its_names() -> None:
    assert set(twiceproof.__all__) <= set(dir(twiceproof))
    assert {"App", "NotDone", "check", "__version__"} <= set(dir(twiceproof))
    assert not {"Any", "TYPE_CHECKING", "import_module"} & set(dir(twiceproof))


class Prompt(code.InteractiveConsole):
    """Takes lines as the interpreter's prompt does, runs none of them, and keeps what it cannot read."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []

    def runcode(self, code: Any) -> None: ...

    def showsyntaxerror(self, *args: Any, **kwargs: Any) -> None:
        self.refused.append(str(sys.exc_info()[1]))


FIRST_PAGES = [block for page in ("README.md", "docs/quickstart.md") for block in blocks(ROOT / page)]


@pytest.mark.parametrize(
    "block", [one for one in FIRST_PAGES if one.language == "python"], ids=lambda block: f"line {block.line}"
)
def test_what_a_first_page_shows_can_be_pasted_at_a_prompt(block: Block) -> None:
    prompt = Prompt()
    for line in [*block.text.splitlines(), ""]:
        prompt.push(line)
    assert prompt.refused == []
