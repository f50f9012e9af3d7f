"""`doctor` and `claims sweep` about large values that are kept outside the store."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from twiceproof import App
from twiceproof.cli.main import cli


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A ledger with a run, and a directory with its report and a file that no run knows of."""
    place = f"dir://{tmp_path}/resources"
    monkeypatch.setenv("TWICEPROOF_RESOURCES", place)
    store = f"sqlite:///{tmp_path}/shop.db"
    with App(store) as app:

        @app.step(repeat="safe")
        def draw(order: int) -> str:
            return "x" * 100_000

        @app.flow(key="order:{order}")
        def sync(order: int) -> int:
            return len(draw(order))

        sync(1)
    orphan = tmp_path / "resources/run_x/lost.res"
    orphan.parent.mkdir()
    orphan.write_text("lost")
    for file in (tmp_path / "resources").rglob("*.res"):
        os.utime(file, (1_000_000_000, 1_000_000_000))
    return store


def findings(url: str) -> dict[str, dict[str, str]]:
    done = CliRunner().invoke(cli, ["--store", url, "doctor", "--json"])
    return {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}


def test_doctor_finds_what_no_run_knows_of_and_sweep_removes_it(url: str, tmp_path: Path) -> None:
    found = findings(url)["resources"]
    assert (found["level"], found["found"]) == ("warn", "1 that no run refers to, older than a day")
    swept = CliRunner().invoke(cli, ["--store", url, "claims", "sweep", "--orphans"])
    assert "Deleted 1 orphaned value." in swept.output
    assert len(list((tmp_path / "resources").rglob("*.res"))) == 1
    assert findings(url)["resources"]["level"] == "ok"


def test_sweep_leaves_orphans_alone_unless_it_is_told(url: str, tmp_path: Path) -> None:
    """Another store may use the same place by mistake."""
    CliRunner().invoke(cli, ["--store", url, "claims", "sweep"])
    assert len(list((tmp_path / "resources").rglob("*.res"))) == 2


def test_a_place_that_cannot_be_used_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWICEPROOF_RESOURCES", "ftp://nowhere")
    assert findings(url)["resources"]["level"] == "refuse"


def test_without_a_place_they_are_in_the_store(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWICEPROOF_RESOURCES")
    assert "in the store, up to 8,388,608 bytes each" in findings(url)["resources"]["found"]
    refused = CliRunner().invoke(cli, ["--store", url, "claims", "sweep", "--orphans"])
    assert "TWICEPROOF_RESOURCES" in refused.output + str(refused.exception)
