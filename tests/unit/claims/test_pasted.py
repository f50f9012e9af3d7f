"""A key in a command that is pasted into a shell."""

from __future__ import annotations

import subprocess

import pytest

from twiceproof import App, NeedsReview
from twiceproof.claims.pasted import pasted

KEYS = [
    "order:1",
    "it's",
    "x'$(echo pwned)",
    "`echo pwned`",
    'a"b',
    "a\\'b",
    "-17",
    "$HOME",
    "\u202eabc'\\",
    "é ü",
    "!!",
]


@pytest.mark.parametrize("key", KEYS)
def test_a_shell_reads_the_key_and_runs_nothing_of_it(key: str) -> None:
    line = f"printf '%s\\n' {pasted(key).removeprefix('-- ')}"
    said = subprocess.run(["bash", "-c", line], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8", "HOME": "/"})
    assert said.stdout.decode() == f"{key}\n"


def test_what_cannot_be_seen_is_written_out() -> None:
    assert pasted("\u202eabc").isprintable()


def test_a_refusal_suggests_a_command_that_is_safe_to_paste(app: App) -> None:
    @app.once(key="{order}")
    def pay(order: str) -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        pay("x'$(echo pwned)")
    with pytest.raises(NeedsReview) as told:
        pay("x'$(echo pwned)")
    assert str(told.value).endswith("claims show pay 'x'\\''$(echo pwned)'")
