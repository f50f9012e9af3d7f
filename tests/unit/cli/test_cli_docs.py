"""The page about the command line cannot drift: every command, option and exit code is on it."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from twiceproof.cli import failures
from twiceproof.cli.main import cli

PAGE = (Path(__file__).parents[3] / "docs/reference/cli.md").read_text("utf-8")


def commands(group=cli, path=("twiceproof",)):
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(commands())


def section(name):
    _, _, rest = PAGE.partition(f"\n## `{name}")
    return rest.partition("\n## ")[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_section(name):
    assert section(name)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_in_its_commands_section_or_among_those_for_all(name):
    everywhere = section("twiceproof` — options")
    assert everywhere
    for parameter in COMMANDS[name].params:
        for word in (*parameter.opts, *parameter.secondary_opts):
            shown = word if word.startswith("-") else word.upper()
            assert shown in section(name) or f"`{shown}" in everywhere, shown


def test_every_exit_code_is_told():
    for code in ("OK", "NEGATIVE", "REFUSED", "UNAVAILABLE", "INTERRUPTED", "UNREAD"):
        assert f"| {getattr(failures, code)} |" in PAGE
