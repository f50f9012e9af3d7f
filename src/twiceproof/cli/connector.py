"""`twiceproof connector`: connector files for no-code tools."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..errors import Misuse
from ..settings import from_environment
from .output import json_text, show_text

__all__ = ["connector"]


ONE = """\b
Examples:
  twiceproof connector {name} --url https://hooks.example.com -o {file}
  twiceproof connector {name} --host hooks.example.com > {file}
"""
EPILOG = """\b
Examples:
  twiceproof connector power-automate --url https://hooks.example.com -o twiceproof.swagger.json
"""


@click.group(epilog=EPILOG)
def connector() -> None:
    """Generate connector files for no-code tools."""


def _options(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("-o", "--output", metavar="FILE", help="File to write. Default: stdout."),
        click.option("--host", metavar="HOST", help="Host name of the server, short for --url https://HOST."),
        click.option("--url", metavar="URL", help="Public URL of the server. Default: TWICEPROOF_URL."),
    ):
        function = option(function)
    return function


@connector.command("power-automate", epilog=ONE.format(name="power-automate", file="twiceproof.swagger.json"))
@_options
def power_automate(host: str | None, url: str | None, output: str | None) -> None:
    """Generate a custom connector for Power Automate."""
    from ..server.connectors import power_automate as made

    _write(made(_address(host, url)), output, "make.powerautomate.com, Custom connectors, Import an OpenAPI file")


@connector.command("n8n", epilog=ONE.format(name="n8n", file="twiceproof.n8n.json"))
@_options
def n8n(host: str | None, url: str | None, output: str | None) -> None:
    """Generate a workflow for n8n."""
    from ..server.connectors import n8n as made

    _write(made(_address(host, url)), output, "n8n, a new workflow, the three dots, Import from File")


def _address(host: str | None, url: str | None) -> str:
    if host and url:
        raise click.UsageError("--host and --url exclude each other; use one of them.")
    found = f"https://{host}" if host else url or from_environment(os.environ).url
    if not found:
        raise Misuse("The public URL of the server is not known; use --url https://… or set TWICEPROOF_URL.")
    return found


def _write(shape: Any, output: str | None, where: str) -> None:
    text = json_text(shape)
    if output is None:
        click.echo(text)
        return
    try:
        Path(output).write_text(text + "\n", "utf-8")
    except OSError as error:
        raise Misuse(f"{output} cannot be written ({error.strerror}); name another file.") from None
    show_text(f"Written to {output}. Import it: {where}.")
