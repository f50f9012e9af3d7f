"""What a user's type checker says about flows: right calls pass, and wrong ones are named."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SHOP = HERE / "typed_shop.py"
WRONG = {number for number, line in enumerate(SHOP.read_text().splitlines(), 1) if "# wrong:" in line}


@pytest.mark.slow
def test_mypy_finds_what_is_wrong_and_nothing_else() -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed: pip install --editable '.[lint]'")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", str(SHOP)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=600,
    )
    found = {int(line): text for line, text in re.findall(r"typed_shop\.py:(\d+): error: (.*)", done.stdout)}
    assert set(found) == WRONG, done.stdout + done.stderr


@pytest.mark.slow
def test_pyright_finds_what_is_wrong_and_nothing_else() -> None:
    pyright = shutil.which("pyright")
    if pyright is None:
        pytest.skip("pyright is not installed: npm install --global pyright")
    done = subprocess.run(
        [pyright, "--outputjson", "--pythonpath", sys.executable, str(SHOP)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=600,
    )
    errors = [one for one in json.loads(done.stdout)["generalDiagnostics"] if one["severity"] == "error"]
    assert {one["range"]["start"]["line"] + 1 for one in errors} == WRONG, errors
