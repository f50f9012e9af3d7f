"""Reads what a page says to type: the `twiceproof` commands in a line, and whether they could be run as they stand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click

from twiceproof.cli.main import cli

WITHIN = re.compile(r"\$\(([^)]*)\)")
OPERATORS = {"|", "||", "&", "&&", ";", "(", ")", ">", ">>", "<"}


def typed(line: str) -> Iterator[list[str]]:
    """The words of every `twiceproof` command in a line of shell, without the prompt and what is around it."""
    line = line.removeprefix("$ ")
    for inner in WITHIN.findall(line):
        yield from typed(inner)
    words = shlex.shlex(WITHIN.sub("…", line), posix=True, punctuation_chars=True)
    words.whitespace_split, words.commenters = True, "#"
    command: list[str] = []
    for word in [*words, ";"]:
        if word not in OPERATORS:
            command.append(word)
            continue
        while command and "=" in command[0] and not command[0].startswith("-"):
            command.pop(0)
        if command[:1] == ["twiceproof"]:
            yield command[1:]
        command = []


def wrong(words: list[str], *, whole: bool = True) -> str:
    """Why this could not be run; "" if it could. What is not `whole` may leave out what a sentence need not say."""
    command: click.Command = cli
    context = click.Context(
        cli, info_name="twiceproof", **cli.context_settings
    )  # a command keeps its first help option
    try:
        while isinstance(command, click.Group):
            words = _read(command, context, words, whole=whole)
            if not words:
                return "" if not whole or context.parent is None else "a command is missing"
            found = command.get_command(context, words[0])
            if found is None:
                return f"there is no command {words[0]!r}"
            context = click.Context(found, info_name=words[0], parent=context)
            command, words = found, words[1:]
        left = _read(command, context, words, whole=whole)
    except click.UsageError as error:
        return error.format_message()
    return f"too many words: {left}" if left else ""


def _read(command: click.Command, context: click.Context, words: list[str], *, whole: bool) -> list[str]:
    """What is left after the options and arguments of one command; nothing is carried out."""
    given, left, _ = command.make_parser(context).parse_args(list(words))
    for parameter in command.params:
        value = given.get(parameter.name or "")
        said = isinstance(value, str | tuple | list) and bool(value)
        if whole and parameter.required and not said:
            raise click.MissingParameter(ctx=context, param=parameter)
        if said and isinstance(parameter.type, click.Choice | click.IntRange):
            for one in [value] if isinstance(value, str) else value:
                if whole or not one.isupper():  # a sentence says WORD, for any of them
                    parameter.type.convert(one, parameter, context)
    return left
