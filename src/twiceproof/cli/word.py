"""A person's word on the command line: whose it is, and what they say a piece of work returned."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path

import click
import msgspec
from msgspec import Raw

from ..doors.json_body import name_twice

__all__ = ["login_name", "read_result"]


def read_result(given: str, option: str = "--result") -> Raw:
    """Checked, and without the blanks between: what is stored is what every replay will say."""
    try:
        text = _result_text(given)
        msgspec.json.decode(text)
    except OSError as error:
        raise click.BadParameter(f"{given[1:]} cannot be read ({error.strerror}).", param_hint=option) from None
    except (ValueError, msgspec.DecodeError) as error:
        raise click.BadParameter(
            f"this is not JSON: {error}. Text needs quotes: '\"done\"'.", param_hint=option
        ) from None
    twice = name_twice(text)
    if twice is not None:
        raise click.BadParameter(f"it has the name {twice[:80]!r} twice in one object.", param_hint=option)
    return Raw(msgspec.json.format(text, indent=-1))


def _result_text(given: str) -> bytes:
    if given == "-":
        return sys.stdin.buffer.read()
    return Path(given[1:]).read_bytes() if given.startswith("@") else given.encode()


def login_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid {os.getuid()}"
