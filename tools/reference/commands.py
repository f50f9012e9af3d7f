"""The command line: every command with its usage, arguments and options, as click knows them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from twiceproof.cli.main import cli
from twiceproof.cli.output import EXIT_CODES

from .table import code, prose, table

__all__ = ["PAGE", "command", "commands", "common", "exit_codes", "index"]

PAGE = Path(__file__).parents[2] / "docs/reference/cli.md"
COMMON = ("--store", "--tenant", "--json")


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by the words that call it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))
        elif found is not None:
            yield " ".join((*path, name)), found


def index(_: str) -> list[str]:
    """Each command with its first sentence, leading to its section."""
    headings = re.findall(r"^## `(twiceproof [^`]+)`", PAGE.read_text("utf-8"), re.M)
    return table(("command", "what it does"), [_entry(name, found, headings) for name, found in commands()])


def _entry(name: str, found: click.Command, headings: list[str]) -> tuple[str, str]:
    heading = next(text for text in headings if f"{text} ".startswith(f"twiceproof {name} "))
    anchor = re.sub(r"[^\w\s-]", "", heading.lower()).replace(" ", "-")
    return f"[`{name}`](#{anchor})", prose((found.help or "").split("\n\n")[0])


def command(name: str) -> list[str]:
    """How it is called, what it takes, and which of the options for every command it does not know."""
    found = dict(commands())[name]
    context = click.Context(found, info_name=name, parent=_root())
    usage = " ".join(["twiceproof", name, *found.collect_usage_pieces(context)])
    shown = [one for one in found.params if isinstance(one, click.Option) and not _is_common(one)]
    lines = ["```text", usage, "```"]
    if shown:
        lines += ["", *table(("option", "meaning"), [_option(one, context) for one in shown])]
    return [*lines, *_lacking(found)]


def common(_: str) -> list[str]:
    """The options that every command takes."""
    context = _root()
    options = [one for one in cli.get_params(context) if isinstance(one, click.Option)]
    return table(("option", "meaning"), [_option(one, context) for one in options])


def _root() -> click.Context:
    """With the settings of the real one: a command keeps the help option that it is first asked for with."""
    return click.Context(cli, info_name="twiceproof", **cli.context_settings)


def exit_codes(_: str) -> list[str]:
    return table(("code", "meaning"), [(str(number), prose(meaning)) for number, meaning in EXIT_CODES.items()])


def _is_common(option: click.Option) -> bool:
    """Said once, for all; but not where a command means something else by the same name."""
    alike = next((one for one in cli.params if one.opts == option.opts), None)
    return option.hidden or (isinstance(alike, click.Option) and alike.help == option.help)


def _lacking(found: click.Command) -> list[str]:
    known = {word for one in found.params if not getattr(one, "hidden", False) for word in one.opts}
    lacks = [f"`{word}`" for word in COMMON if word not in known]
    return ["", f"Does not take {', '.join(lacks)}."] if lacks else []


def _option(option: click.Option, context: click.Context) -> tuple[str, str]:
    value = "" if option.is_flag else f" {_value(option, context)}"
    words = [*(f"{word}{value}" for word in option.opts), *option.secondary_opts]
    return ", ".join(code(word) for word in words), ". ".join(_meaning(option, context))


def _value(option: click.Option, context: click.Context) -> str:
    is_number = isinstance(option.type, click.IntRange | click.types.IntParamType)
    return "N" if is_number else option.make_metavar(context)


def _meaning(option: click.Option, context: click.Context) -> Iterator[str]:
    yield prose(option.help or "")
    extra = option.get_help_extra(context)
    if "default" in extra:
        yield f"Default: {code(str(extra['default']))}"
    if "range" in extra:
        yield extra["range"].replace("<=x<=", " to ").replace("x>=", "At least ")
    if option.required:
        yield "Needed"
    if option.multiple:
        yield "May be repeated"
