"""The options common to all commands (--store, --tenant, --json), and how the ledger they name is opened."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

import click

from ..errors import Misuse
from ..safe_text import has_password, quoted, store_words, suggested_command

if TYPE_CHECKING:
    from ..settings import Settings
    from ..stores.grouped import GroupedStore

__all__ = [
    "LedgerTarget",
    "command",
    "json_option",
    "load_record_kinds",
    "no_store",
    "no_target",
    "opened",
    "options_about",
    "program",
    "read_private",
    "require_ledger",
    "scheme_of",
    "sqlite_path",
    "sqlite_url",
    "target_options",
    "tenant_option",
]


F = TypeVar("F", bound=Callable[..., Any])

STORE_HELP = (
    "URL of the ledger: sqlite:///file.db, postgresql://…, redis://…, or @FILE to read the URL from a private file. "
    "Default: TWICEPROOF_STORE, then sqlite:///twiceproof.db."
)
TENANT_HELP = "Tenant whose entries are meant. Default: TWICEPROOF_TENANT, then “default”."
JSON_HELP = "Print one JSON document on stdout."


class LedgerTarget:
    """The values of the common options, given before the command or after it."""

    def __init__(self) -> None:
        self.json = False
        self.given_store: str | None = None  # as written on the command line
        self.given_tenant: str | None = None
        self._url: str | None = None

    @property
    def url(self) -> str:
        return self._url or _environment().store

    @property
    def is_default(self) -> bool:
        """Whether neither an option nor the environment names a ledger."""
        return self._url is None and not os.environ.get("TWICEPROOF_STORE")

    @property
    def keys(self) -> str:
        """The encryption keys. Never an option: every user of the machine can read a command line."""
        return _environment().keys

    @property
    def tenant(self) -> str:
        return self.given_tenant or self.own_tenant

    @property
    def own_tenant(self) -> str:
        """The tenant of processes in this environment."""
        return _environment().tenant

    def point(self, store: str) -> None:
        self.given_store = store
        self._url = read_private(Path(store[1:])) if store.startswith("@") else store
        if not store.startswith("@") and has_password(store):
            click.echo(
                "Warning: every user of this machine can read a password on the command line; "
                "use TWICEPROOF_STORE, or --store @FILE.",
                err=True,
            )

    def words(self) -> list[str]:
        """The options that a suggested command needs to address the same ledger."""
        shown = list(store_words(self.given_store)) if self.given_store else []
        return [*shown, "--tenant", self.tenant] if self.given_tenant else shown


def _environment() -> Settings:
    from ..settings import from_environment  # a late import: `version` does not need it

    return from_environment(os.environ)


def read_private(path: Path, option: str = "--store") -> str:
    """Read a URL from a file. The file holds a password, so it is refused if other users can read it."""
    try:
        mode = path.stat().st_mode
        text = path.read_text("utf-8").strip()
    except OSError as error:
        raise click.BadParameter(
            f"{path} cannot be read ({error.strerror}); name a file that holds the URL.", param_hint=option
        ) from None
    except UnicodeDecodeError:
        raise click.BadParameter(f"{path} is not text; write the URL into it.", param_hint=option) from None
    if stat.S_IMODE(mode) & 0o077:
        raise click.BadParameter(f"other users can read {path}; run: chmod 600 {quoted(str(path))}", param_hint=option)
    if not text:
        raise click.BadParameter(f"{path} is empty; write the URL into it.", param_hint=option)
    return text


def _refuse_empty(option: str, value: str | None) -> None:
    """Refuse the value of an unset variable: the default would take its place, a ledger that was not meant."""
    if value == "":
        raise click.BadParameter("the value is empty; give one, or leave the option out.", param_hint=option)


def _take_store(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    _refuse_empty("--store", value)
    if value:
        ctx.ensure_object(LedgerTarget).point(value)


def _take_tenant(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    _refuse_empty("--tenant", value)
    if value:
        ctx.ensure_object(LedgerTarget).given_tenant = value


def _take_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    target = ctx.ensure_object(LedgerTarget)
    target.json = target.json or value


def json_option(command: F) -> F:
    return click.option(
        "--json", "as_json", is_flag=True, is_eager=True, expose_value=False, callback=_take_json, help=JSON_HELP
    )(command)


def tenant_option(command: F) -> F:
    named = click.option("--tenant", metavar="NAME", expose_value=False, callback=_take_tenant, help=TENANT_HELP)
    return named(command)


def options_about(store_help: str) -> Callable[[F], F]:
    """Add `--store`, `--tenant` and `--json`, with a help text of the command's own for `--store`."""

    def decorate(command: F) -> F:
        store = click.option("--store", metavar="URL", expose_value=False, callback=_take_store, help=store_help)
        return store(tenant_option(json_option(command)))

    return decorate


target_options = options_about(STORE_HELP)


def _refuse_store(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value or ctx.ensure_object(LedgerTarget).given_store:
        raise Misuse("The app names its own store, so --store is refused here; set TWICEPROOF_STORE for App().")


def _refuse_target(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    target = ctx.ensure_object(LedgerTarget)
    if value or target.given_store or target.given_tenant:
        raise Misuse(
            "The app names its own store and tenant, so --store and --tenant are refused here; "
            "set TWICEPROOF_STORE or TWICEPROOF_TENANT for App()."
        )


def no_store(command: F) -> F:
    """Refuse `--store`, before or after the command: the command works on the app's store and would ignore it."""
    return click.option("--store", hidden=True, expose_value=False, callback=_refuse_store)(command)


def no_target(command: F) -> F:
    """Refuse `--store` and `--tenant`: the command works on the app's store, for every tenant of the app."""
    tenant = click.option("--tenant", hidden=True, expose_value=False, callback=_refuse_target)
    return click.option("--store", hidden=True, expose_value=False, callback=_refuse_target)(tenant(command))


@contextlib.contextmanager
def opened(target: LedgerTarget, *, create: bool = False) -> Iterator[GroupedStore]:
    """Open the ledger, with the encryption keys.

    Every command goes through here: opened without the keys, a store would write rows that other processes refuse,
    or accept rows that are not encrypted.
    """
    if not create:
        require_ledger(target.url)
    from ..stores.open import open_store  # `version` and `--help` load no store

    store = open_store(target.url, keys=target.keys, create=create)
    try:
        yield store
    finally:
        store.close()


def load_record_kinds() -> None:
    """Load every module that registers a kind of record: a sweep or a key rotation must not miss one."""
    from ..app import app  # noqa: F401
    from ..declared import releases  # noqa: F401
    from ..reconcile import findings  # noqa: F401
    from ..server import tokens  # noqa: F401


def require_ledger(url: str) -> None:
    """Refuse a file without a ledger before anything is opened. On a server, `open_store(create=False)` checks it."""
    from ..stores.base import POINT
    from ..stores.sqlite import schema

    if scheme_of(url) == "memory":
        raise Misuse(f"A memory:// ledger exists only within its own process; {POINT}.")
    path = sqlite_path(url)
    if path is not None:
        schema.require_ledger(path)


def scheme_of(url: str) -> str:
    try:
        return urlsplit(url).scheme
    except ValueError:
        raise Misuse("The store's URL cannot be read; write it like postgresql://user@host/database.") from None


def sqlite_path(url: str) -> Path | None:
    """Return the file of a SQLite URL; None for any other store, and for a URL that the store will refuse."""
    from ..stores.open import sqlite_file

    return sqlite_file(url) if scheme_of(url) == "sqlite" else None


def sqlite_url(path: Path) -> str:
    return "sqlite:///" + quote(str(path))


def command(target: LedgerTarget, *words: str, about: Sequence[str] = ()) -> str:
    """Return a `twiceproof` command to suggest, with the options that address the same ledger."""
    return suggested_command(*target.words(), *words, about=about)


def program() -> str:
    """Return what to type to run twiceproof here: its name, or its path where the name is not on the PATH."""
    started_as = Path(sys.argv[0])
    if shutil.which("twiceproof") or started_as.name != "twiceproof":
        return "twiceproof"
    return quoted(str(started_as))
