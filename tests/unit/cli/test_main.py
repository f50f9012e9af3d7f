"""The command as it is started: version, help, speed, a real terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import twiceproof
from twiceproof.cli import output
from twiceproof.cli.main import COMMANDS, cli

HEAVY = ("msgspec", "sqlite3", "asyncio", "twiceproof.app.app", "twiceproof.claims.manager", "rich")


def command(*words):
    return [sys.executable, "-m", "twiceproof.cli.main", *words]


def test_the_version_is_told(run, run_json):
    assert twiceproof.__version__ in run("--version").stdout
    assert twiceproof.__version__ in run("version").stdout
    assert set(run_json("version")) == {"twiceproof", "python"}


def test_telling_the_version_loads_nothing_heavy():
    """The time it takes is this list: a clock would tell more about the machine than about us."""
    code = (
        "import sys; sys.argv[1:] = ['version']\n"
        "from twiceproof.cli.main import main\n"
        "try: main()\n"
        f"finally: print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_public_name_can_still_be_had():
    for name in twiceproof.__all__:
        assert getattr(twiceproof, name) is not None
    with pytest.raises(AttributeError):
        _ = twiceproof.Nonsense


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("claims",),
        ("claims", "list"),
        ("claims", "show"),
        ("claims", "settle"),
        ("claims", "release"),
        ("claims", "sweep"),
        ("doctor",),
        ("demo",),
        ("version",),
    ],
)
def test_every_command_has_help(run, words):
    for flag in ("-h", "--help"):
        text = run(*words, flag).stdout
        assert text.startswith("Usage: ")
    if words not in ((), ("claims",), ("version",)):
        assert "Example" in text


def test_help_lists_every_command(run):
    text = run("--help").stdout
    for name in cli.list_commands(None):
        assert f"\n  {name} " in text


def on_terminal(*words, typed=b"", env=None):
    """Run on a real terminal, and give what it showed and how it ended."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        command(*words), stdin=child, stdout=child, stderr=child, env={**os.environ, "COLUMNS": "200", **(env or {})}
    )
    os.close(child)
    os.write(parent, typed)
    shown = b""
    while True:
        try:
            part = os.read(parent, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        shown += part
    os.close(parent)
    return shown.decode(), process.wait(timeout=30)


@pytest.mark.parametrize(("typed", "code", "forgotten"), [(b"y\n", 0, True), (b"n\n", 1, False), (b"\n", 1, False)])
def test_on_a_terminal_a_release_is_asked_about(ledger, typed, code, forgotten):
    ledger.fill()
    shown, ended = on_terminal("--store", ledger.url, "claims", "release", "ship", "order:done", typed=typed)
    assert "Release ship order:done (state: done)?" in shown
    assert ended == code
    assert (ledger.ship.look("done") is None) == forgotten


def test_on_a_terminal_with_rich_a_key_is_no_markup_and_no_escape(ledger):
    pytest.importorskip("rich")
    ledger.hold("", key="[red]order[/red]:\u202e17")
    shown, code = on_terminal("--store", ledger.url, "claims", "list")
    assert code == 0
    assert "[red]order[/red]:\\u202e17" in shown
    assert "━" in shown or "─" in shown


@pytest.fixture
def no_rich(tmp_path):
    """An environment in which rich seems not to be installed."""
    hide = "lambda name, *rest: None if name == 'rich' else find(name, *rest)"
    (tmp_path / "sitecustomize.py").write_text(
        f"import importlib.util as util\nfind = util.find_spec\nutil.find_spec = {hide}\n"
    )
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}


def test_on_a_terminal_a_table_of_runs_fits_into_eighty_columns(shop, ledger, no_rich):
    shop.call("timeout" + "x" * 20)
    shown, code = on_terminal("--store", ledger.url, "runs", "list", env={**no_rich, "COLUMNS": "80"})
    head, row, *_ = shown.splitlines()
    assert (code, head.split()) == (0, ["FLOW", "KEY", "STATE", "AGE", "REASON"])
    assert len(row) <= 80 and row.endswith("…")


def test_without_rich_the_table_is_plain(ledger, no_rich):
    ledger.hold("17")
    shown, code = on_terminal("--store", ledger.url, "claims", "list", env=no_rich)
    assert code == 0
    assert "─" not in shown
    assert "ship       order:17" in shown


@pytest.mark.parametrize("rich", [True, False])
def test_a_long_command_shows_on_a_terminal_how_far_it_is(ledger, no_rich, rich):
    ledger.back = 40 * 86_400.0
    ledger.call("old")
    shown, code = on_terminal("--store", ledger.url, "claims", "sweep", env={} if rich else no_rich)
    assert code == 0
    assert "swept" in shown
    assert "Deleted 1 claim," in shown


@pytest.mark.parametrize("rich", [True, False])
def test_on_a_narrow_terminal_a_claim_is_one_line(ledger, no_rich, rich):
    ledger.call("timeout")
    narrow, _ = on_terminal("--store", ledger.url, "claims", "list", env={**({} if rich else no_rich), "COLUMNS": "80"})
    (line,) = [line for line in narrow.partition("To show one")[0].splitlines() if "order:timeout" in line]
    assert "review" in line and "run_" not in narrow and "OWNER" not in narrow
    wide, _ = on_terminal("--store", ledger.url, "claims", "list", env={} if rich else no_rich)
    assert "run_" in wide and "OWNER" in wide


def test_where_no_colour_is_wanted_there_is_none(ledger):
    ledger.call("timeout")
    words = ("--store", ledger.url, "claims", "show", "ship", "order:timeout")
    assert "\x1b[" in on_terminal(*words)[0]
    assert "\x1b[" not in on_terminal(*words, env={"NO_COLOR": "1"})[0]


@pytest.mark.parametrize("rich", [True, False])
def test_on_a_terminal_of_80_columns_a_run_is_one_line(shop, ledger, no_rich, rich):
    shop.call("timeout", "timeout-again")
    env = {**({} if rich else no_rich), "COLUMNS": "80"}
    shown, _ = on_terminal("--store", ledger.url, "review", "list", env=env)
    lines = shown.partition("KEY")[2].partition("To show")[0].splitlines()[1:]
    runs = [line for line in lines if line.strip(" ─")]
    assert runs and all("order:timeout" in line for line in runs)
    assert max(map(len, runs)) <= 80 + len("\x1b[33m\x1b[0m")


def test_no_line_of_a_list_of_commands_is_cut_off(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    groups = [name for name in COMMANDS if hasattr(cli.get_command(None, name), "list_commands")]
    assert len(groups) > 8
    for words in ([], *([name] for name in groups)):
        told = CliRunner().invoke(cli, [*words, "--help"], prog_name="twiceproof").stdout
        assert "..." not in told.replace("[ARGS]...", ""), (words, told)


PAGE = (Path(__file__).parents[3] / "docs/reference/cli.md").read_text("utf-8")


def commands(group=cli, path=("twiceproof",)):
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


COMMANDS_BY_NAME = dict(commands())


def section(name):
    found = re.search(rf"\n## `{re.escape(name)}[ `]", PAGE)
    return PAGE[found.end() :].partition("\n## ")[0] if found else ""


@pytest.mark.parametrize("name", COMMANDS_BY_NAME)
def test_every_command_has_a_section_in_the_reference(name):
    assert section(name)


@pytest.mark.parametrize("name", COMMANDS_BY_NAME)
def test_every_option_is_in_its_commands_section_or_among_those_for_all(name):
    everywhere = section("twiceproof")
    assert everywhere
    for parameter in COMMANDS_BY_NAME[name].params:
        for word in (*parameter.opts, *parameter.secondary_opts):
            shown = word if word.startswith("-") else parameter.metavar or word.upper()
            assert shown in section(name) or f"`{shown}" in everywhere, shown


def test_every_exit_code_is_told():
    for code in ("OK", "NEGATIVE", "REFUSED", "UNAVAILABLE", "INTERRUPTED", "UNREAD"):
        assert f"| {getattr(output, code)} |" in PAGE
