"""The `twiceproof` command: imports each subcommand when it is called, and reports errors as one line."""

from __future__ import annotations

import os
import platform
import sys
from importlib import import_module
from typing import Any

import click

from ..errors import TwiceproofError
from ..version import __version__
from .output import EXIT_CODES, INTERRUPTED, UNREAD, report, report_usage, show_json, show_text
from .target import LedgerTarget, json_option, target_options

__all__ = ["cli", "main", "version"]


COMMANDS = {  # each with the module that defines it
    "claims": "claims",
    "runs": "runs",
    "review": "review",
    "flows": "flows",
    "ids": "flows",
    "approvals": "approvals",
    "hooks": "hooks",
    "messages": "messages",
    "outbox": "messages",
    "consumers": "consumers",
    "brokers": "consumers",
    "trace": "trace",
    "callbacks": "callbacks",
    "connector": "connector",
    "duplicates": "duplicates",
    "reconcile": "reconcile",
    "check": "flows",
    "encryption": "encryption",
    "prove": "prove",
    "doctor": "doctor",
    "ledger": "ledger",
    "rebuild": "rebuild",
    "demo": "demo",
    "work": "serve",
    "workers": "flows",
    "relay": "serve",
    "consume": "serve",
    "serve": "serve",
    "tokens": "tokens",
    "open": "tokens",
    "acts": "acts",
    "mcp": "mcp",
}
WANTS_JSON = "twiceproof.json"
NO_ARGUMENTS = getattr(click.exceptions, "NoArgsIsHelpError", ())  # before click 8.2 printing the help was no error

EPILOG = f"""\b
Examples:
  twiceproof demo                           compare it with a script, under faults
  twiceproof work shop:app                  run a worker
  twiceproof serve shop:app                 run the HTTP server, with a worker
  twiceproof claims list                    list claims that are not done
  twiceproof claims show ship order:17      show one claim
  twiceproof runs show sync_order/order:17  show one run, step by step
  twiceproof trace evt_1042                 follow an event to its runs and messages
  twiceproof review list                    list what needs a person's decision
  twiceproof check shop:app                 check flows for unsafe repeats
  twiceproof prove shop:sync_order --event order.json --files out
  twiceproof --store postgresql://db/app doctor
\b
Exit codes: {"; ".join(f"{code} {meaning.partition(':')[0]}" for code, meaning in EXIT_CODES.items())}.
"""


class Commands(click.Group):
    """A group that imports a command when it is called, and reports errors as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module = import_module(f".{COMMANDS[cmd_name]}", __package__)
        found: click.Command = getattr(module, f"{cmd_name}_", None) or getattr(module, cmd_name)
        return found

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Searched before parsing: a usage error must also be reported in JSON.
        ctx.meta[WANTS_JSON] = "--json" in (args[: args.index("--")] if "--" in args else args)
        try:
            return super().parse_args(ctx, args)
        except NO_ARGUMENTS:
            raise  # a group without a subcommand prints its help; that is no usage error
        except click.UsageError as error:
            ctx.exit(report_usage(error, as_json=ctx.meta[WANTS_JSON]))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TwiceproofError as error:
            ctx.exit(report(error, url=ctx.ensure_object(LedgerTarget).url, as_json=ctx.meta[WANTS_JSON]))
        except NO_ARGUMENTS:
            raise
        except click.UsageError as error:
            ctx.exit(report_usage(error, as_json=ctx.meta[WANTS_JSON]))
        except (KeyboardInterrupt, click.Abort):
            click.echo("Interrupted.", err=True)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:  # click would exit with 1, which means a negative result here
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes the rest on exit
            ctx.exit(UNREAD)


@click.group(cls=Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", message="twiceproof %(version)s", help="Show the version and exit.")
@target_options
def cli() -> None:
    """Run workers and the server, inspect the ledger, settle unknown outcomes, and check flows and stores."""


@cli.command()
@json_option
@click.pass_obj
def version(target: LedgerTarget) -> None:
    """Show the versions of twiceproof and Python."""
    python = platform.python_version()
    if target.json:
        show_json({"twiceproof": __version__, "python": python})
    else:
        show_text(f"twiceproof {__version__} (Python {python})")


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        # On a terminal that cannot encode a character, escape it; the default would raise.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    cli(
        prog_name="twiceproof", color=False if os.environ.get("NO_COLOR") else None
    )  # no-color.org; rich checks it itself


if __name__ == "__main__":
    main()
