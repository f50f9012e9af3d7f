"""What `prove` looks at, as it is said on the command line."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct

from ..errors import Misuse
from ..passwords import has_password
from .target import read_private

if TYPE_CHECKING:
    from ..prove.worlds.world import World

__all__ = ["Outside", "outside_options", "read_json"]

F = TypeVar("F", bound=Callable[..., Any])

OPTIONS = (
    click.option(
        "--files",
        metavar="DIR",
        multiple=True,
        help="A directory that the flow writes into; its contents are the outside, and are put back before each play.",
    ),
    click.option(
        "--calls",
        metavar="MODULE:FUNCTION",
        multiple=True,
        help="A function whose calls are the effect; looked up where it is called.",
    ),
    click.option(
        "--http",
        metavar="HOST",
        multiple=True,
        help="A host, or host:port, that a recording server stands in for, for `http://`.",
    ),
    click.option("--http-answers", metavar="FILE", help="What that server answers, as JSON."),
    click.option("--http-keys", is_flag=True, help="That server honours Idempotency-Key."),
    click.option(
        "--http-counts",
        metavar="REQUEST",
        multiple=True,
        help='That server counts these requests, such as "PUT /meters/*": the same PUT or DELETE again is an effect.',
    ),
    click.option(
        "--smtp", metavar="HOST", multiple=True, help="A mail server, or host:port, that a sink stands in for."
    ),
    click.option(
        "--table",
        metavar="URL#NAME",
        multiple=True,
        help="A table that the flow writes into, in SQLite or PostgreSQL; @FILE reads the URL from a private file.",
    ),
)


def outside_options(command: F) -> F:
    for option in reversed(OPTIONS):
        command = option(command)
    return command


class Outside(Struct, frozen=True):
    files: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    http: tuple[str, ...] = ()
    http_answers: str | None = None
    http_keys: bool = False
    http_counts: tuple[str, ...] = ()
    smtp: tuple[str, ...] = ()
    table: tuple[str, ...] = ()

    def open(self, stack: ExitStack) -> list[World]:
        """Everything that was named; what stands in for others is ended with the stack."""
        found: list[World] = self._still(stack)
        if self.http:
            from ..prove.worlds.http import HttpWorld

            answers = read_json(self.http_answers, "--http-answers") if self.http_answers else {}
            world = HttpWorld(
                list(self.http), answers=answers, honours_keys=self.http_keys, counts=list(self.http_counts)
            )
            found.append(stack.enter_context(world))
        if self.smtp:
            from ..prove.worlds.smtp import SmtpWorld

            found.append(stack.enter_context(SmtpWorld(list(self.smtp))))
        if not found:
            raise Misuse(
                "Nothing is looked at; say what the effect is: --files DIR, --calls module:function, --http HOST, "
                "--smtp HOST or --table URL#name."
            )
        return found

    def _still(self, stack: ExitStack) -> list[World]:
        from ..prove.worlds.calls import Calls
        from ..prove.worlds.files import Files
        from ..prove.worlds.table import TableWorld

        apart = len(self.files) > 1
        found: list[World] = [stack.enter_context(closing(Files(Path(name), apart=apart))) for name in self.files]
        found += [stack.enter_context(closing(TableWorld(_private(name)))) for name in self.table]
        return [*found, Calls(list(self.calls))] if self.calls else found

    def words(self) -> list[str]:
        """The same on a command line, without passwords."""
        several = {"--files": self.files, "--calls": self.calls, "--http": self.http, "--smtp": self.smtp}
        several["--table"] = tuple("@FILE" if has_password(name) else name for name in self.table)
        several["--http-counts"] = self.http_counts
        words = [word for option, names in several.items() for name in names for word in (option, name)]
        words += ["--http-answers", self.http_answers] if self.http_answers else []
        return [*words, "--http-keys"] if self.http_keys else words


def _private(name: str) -> str:
    return read_private(Path(name[1:]), "--table") if name.startswith("@") else name


def read_json(name: str, option: str) -> Any:
    import msgspec

    from ..doors.json_body import name_twice

    try:
        text = Path(name).read_bytes()
        value = msgspec.json.decode(text)
    except OSError as error:
        raise Misuse(f"{name} cannot be read ({error.strerror}); {option} takes a JSON file.") from None
    except msgspec.DecodeError as error:
        raise Misuse(f"{name} is not JSON ({error}); correct it.") from None
    if (twice := name_twice(text)) is not None:
        raise Misuse(f"{name} has the name {twice[:80]!r} twice in one object; correct it.")
    return value
