"""`twiceproof`: the commands, loaded when they are asked for, and what happens to their errors."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import click

from ..errors import TwiceproofError
from ..version import __version__
from .failures import EXIT_CODES, INTERRUPTED, UNREAD, report, report_usage
from .target import LedgerTarget, target_options

__all__ = ["cli", "main"]


COMMANDS = {
    "claims": "claims",
    "runs": "runs",
    "review": "review",
    "flows": "flows",
    "ids": "flows",
    "approvals": "approvals",
    "hooks": "hooks",
    "callbacks": "callbacks",
    "connector": "connector",
    "duplicates": "duplicates",
    "check": "check",
    "keys": "keys",
    "prove": "prove",
    "doctor": "doctor",
    "demo": "demo",
    "work": "serve",
    "workers": "workers",
    "serve": "serve",
    "tokens": "tokens",
    "version": "version",
}
WANTS_JSON = "twiceproof.json"
SAYS_NOTHING = getattr(click.exceptions, "NoArgsIsHelpError", ())  # before click 8.2 the help was no error

EPILOG = f"""\b
Examples:
  twiceproof demo                              see it work, kills included
  twiceproof work shop:app                     carry out runs
  twiceproof serve shop:app                    take in webhooks, and carry out runs
  twiceproof claims list                       what is not done yet, and why
  twiceproof claims show ship order:17         everything about one claim
  twiceproof runs show sync_order/order:17     one run, step by step
  twiceproof review list                       what waits for a person
  twiceproof check shop:app                    is it safe to repeat, as written?
  twiceproof prove shop:sync_order --event order.json --files out
  twiceproof --store postgresql://db/app doctor
\b
Exit codes: {"; ".join(f"{code} {meaning.partition(':')[0]}" for code, meaning in EXIT_CODES.items())}.
"""


class Commands(click.Group):
    """A group that imports a command when it is called, and tells errors as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = getattr(import_module(f".{COMMANDS[cmd_name]}", __package__), cmd_name)
        return found

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Looked for by hand: a line that cannot be parsed was still meant to be answered in JSON.
        ctx.meta[WANTS_JSON] = "--json" in (args[: args.index("--")] if "--" in args else args)
        try:
            return super().parse_args(ctx, args)
        except SAYS_NOTHING:
            raise  # nothing was said, and nothing is wrong: the help itself is the answer
        except click.UsageError as error:
            ctx.exit(report_usage(error, as_json=ctx.meta[WANTS_JSON]))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TwiceproofError as error:
            ctx.exit(report(error, url=ctx.ensure_object(LedgerTarget).url, as_json=ctx.meta[WANTS_JSON]))
        except SAYS_NOTHING:
            raise
        except click.UsageError as error:
            ctx.exit(report_usage(error, as_json=ctx.meta[WANTS_JSON]))
        except (KeyboardInterrupt, click.Abort):
            click.echo("Interrupted.", err=True)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:  # click would end with 1, which is an answer here
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is flushed as Python ends
            ctx.exit(UNREAD)


@click.group(cls=Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", message="twiceproof %(version)s", help="Show the version and leave.")
@target_options
def cli() -> None:
    """Run it twice, it happens once: look at the ledger, settle what is unknown, check the store."""


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a letter must not turn an answer into a traceback.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    cli(prog_name="twiceproof", color=False if os.environ.get("NO_COLOR") else None)  # no-color.org; rich looks itself


if __name__ == "__main__":
    main()
