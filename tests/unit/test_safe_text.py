"""A command that an error suggests does what it says when it is pasted, whatever stands in the key."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from twiceproof import App, NeedsReview, Waiting
from twiceproof.claims.claim import address_of
from twiceproof.claims.states import ClaimRequest
from twiceproof.safe_text import quoted, store_words, suggested_command
from twiceproof.server.services.claim_messages import how_to_settle

KEYS = [
    "order:17",
    "o'$(touch PWNED)",
    'o"`touch PWNED`',
    "-17",
    "--json",
    'it\'s "q"',
    "a b",
    "a  b",
    "no-break\u00a0blank",
    "*",
    "back\\slash",
    "a\u202eb",
]


def pasted(command: str, at: Path) -> subprocess.CompletedProcess[str]:
    """In a shell, in an empty directory of its own, with `twiceproof` there."""
    (at / "twiceproof").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m twiceproof "$@"\n')
    (at / "twiceproof").chmod(0o700)
    return subprocess.run(
        ["bash", "-c", f"PATH={shlex.quote(str(at))}:$PATH; {command}"], cwd=at, capture_output=True, text=True
    )


def review_of(app: App, key: str) -> str:
    @app.once(key="{x}", stable=("x",))
    def pay(x: str) -> None:
        raise TimeoutError

    with pytest.raises(NeedsReview):
        pay(key)
    with pytest.raises(NeedsReview) as told:
        pay(key)
    return str(told.value).rpartition("Look at it with: ")[2]


@pytest.mark.parametrize("key", KEYS)
def test_the_suggested_command_has_the_very_key_as_one_word(key: str, tmp_path: Path) -> None:
    with App("memory://") as app:
        command = review_of(app, key)
    line = f"printf '%s\\n' {command}"
    shown = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, env={"LC_ALL": "C.UTF-8"})
    assert shown.stdout.decode().splitlines()[-2:] == ["pay", key]


@pytest.mark.parametrize("key", ["order:17", "o'$(touch PWNED)", "-17", "a  b"])
def test_the_suggested_command_shows_the_claim_when_it_is_pasted(key: str, tmp_path: Path) -> None:
    place = tmp_path / "my shop's $(touch PWNED)"
    place.mkdir()
    with App(f"sqlite:///{place}/shop.db?durability=process") as app:
        command = review_of(app, key)
    done = pasted(f"{command} --json" if " -- " not in command else command.replace(" -- ", " --json -- "), tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["claim"]["key"] == key
    assert not list(tmp_path.rglob("PWNED"))


def test_another_tenants_claim_is_shown_to_that_tenant(tmp_path: Path) -> None:
    with App(f"sqlite:///{tmp_path}/shop.db?durability=process", tenant="acme") as app:
        command = review_of(app, "-17")
    assert command.endswith("--tenant acme claims show -- pay -17")
    assert pasted(command, tmp_path).returncode == 0


def test_the_claim_service_suggests_a_command_that_can_be_pasted() -> None:
    key = "o'$(touch PWNED)"
    ask = ClaimRequest(at=address_of("default", "pay", key), operation="pay", key=key, owner="ann", lease=30.0)
    assert f"twiceproof claims settle --happened pay {shlex.quote(key)} " in how_to_settle(ask)


def test_a_parked_run_is_looked_at_in_a_ledger_whose_path_has_a_blank(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a b.db?durability=process"
    with App(url) as app:

        @app.flow(key="{x}")
        def ship(x: int) -> None:
            app.sleep("1h")

        with pytest.raises(Waiting) as told:
            ship(1)
        with pytest.raises(TimeoutError) as late:
            ship.start(1).result(timeout=0)
    for error in (told.value, late.value):
        assert f"twiceproof --store {quoted(url)} runs show run_" in str(error)


@pytest.mark.parametrize("about", [(), ("ship", "order:17")])
def test_plain_words_are_left_as_they_are(about: Any) -> None:
    assert suggested_command("claims", "show", about=about) == " ".join(["twiceproof", "claims", "show", *about])


@pytest.mark.parametrize("url", ["sqlite:///shop.db", "postgresql://app@db/shop", "redis://cache:6379/0"])
def test_a_store_without_a_password_is_named(url: str) -> None:
    assert store_words(url) == ("--store", url)


@pytest.mark.parametrize(
    "url", ["postgresql://app:pw@db/shop", "redis://:pw@cache/0", "postgresql://db/shop?password=pw"]
)
def test_a_store_with_a_password_is_left_to_the_environment(url: str) -> None:
    assert store_words(url) == ()
