"""An app of its own for commands that import one."""

from __future__ import annotations

import subprocess
import sys

from click.testing import CliRunner

from twiceproof.cli.main import cli

APP = """
from twiceproof import App
app = App("sqlite:///shop.db")
count = 7

@app.step(repeat="safe")
def ship(n):
    with open("shipped", "a") as file:
        file.write(f"{n}\\n")
    return n

@app.flow(key="order:{n}", version="2", accepts=("1",))
def order(n: int):
    if n == 13:
        raise ValueError("no\\nluck")
    return ship(n)
"""


def work(*words, code=0):
    """In this process, for what is refused."""
    result = CliRunner().invoke(cli, ["work", *words])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def worked(*words):
    """In a process of its own, which has its own log. What it told, line by line."""
    command = [sys.executable, "-m", "twiceproof", "work", "workshop:app", "--until-idle", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return done.stderr.splitlines()
