"""The outside of a flow in a file, derived from its steps: a stand-in for every connection, function and topic."""

from __future__ import annotations

import functools
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from importlib import import_module
from pathlib import Path
from typing import Any

from ...declared.connections import Connection, Connections
from ...declared.lint_triggers import RequestPattern
from ...declared.model import (
    ActingSpec,
    ApproveSpec,
    CallSpec,
    FlowTestSpec,
    HttpSpec,
    MailSpec,
    NotifySpec,
    ProbeSpec,
    PublishSpec,
    RemoteSpec,
    SqlLookSpec,
    SqlSpec,
)
from ...declared.names import read_request
from ...declared.reading import ReadFlow, ReadStep, walk
from ...errors import Misuse
from ...flows.step import Step
from .broker import BrokerWorld
from .http import HttpWorld
from .smtp import SmtpWorld
from .ssh import SshWorld
from .table import TableWorld
from .world import World

__all__ = ["DeclaredCalls", "DerivedWorld"]


PATCHED_SAFELY = "PATCH "  # declared safe, it sets fields; a POST that is declared safe is counted each time
SAME = "same"


class DerivedWorld:
    """What stands for the outside of a flow in one test. `connections` are what the flow is compiled with."""

    def __init__(self, reads: Sequence[ReadFlow], test: FlowTestSpec, known: Connections, folder: Path) -> None:
        self._steps = [step for read in reads for step in walk((*read.steps, *read.on_error))]
        self._test = test
        self._known = known
        self._folder = folder
        self._kinds = dict(self._kinds_of_steps())
        self.connections = Connections({name: self._stand_in(name) for name in self._kinds}, (), "tests")

    @property
    def topics(self) -> list[str]:
        return sorted({step.spec.publish for step in self._steps if isinstance(step.spec, PublishSpec)})

    def host(self, name: str) -> str:
        return f"{name.replace('_', '-').lower()}.test"

    # -- connections -----------------------------------------------------------------------------

    def _kinds_of_steps(self) -> Iterator[tuple[str, str]]:
        for step in self._steps:
            spec = step.spec
            if isinstance(spec, HttpSpec):
                yield read_request(spec.http)[1], "http"
            elif isinstance(spec, SqlSpec | MailSpec):
                yield str(getattr(spec, step.verb)), "sql" if isinstance(spec, SqlSpec) else "smtp"
            elif isinstance(spec, NotifySpec):
                yield spec.notify, self._kind_of_notice(spec.notify)
            elif isinstance(spec, ApproveSpec) and spec.ask is not None:
                yield spec.ask.notify, self._kind_of_notice(spec.ask.notify)
            elif isinstance(spec, RemoteSpec):
                yield spec.remote.partition(" ")[2].strip(), "ssh"
            yield from _kinds_of_probe(getattr(spec, "repeat", None))

    def _kind_of_notice(self, name: str) -> str:
        real = self._known.known.get(name)
        return "smtp" if real is not None and real.kind == "smtp" else "webhook"

    def _stand_in(self, name: str) -> Connection:
        """The connection with its address replaced, and without its secrets. A log is observed as a webhook."""
        kind, host, real = self._kinds[name], self.host(name), self._known.known.get(name) or Connection()
        if kind == "http":
            return Connection(http=f"http://{host}", provider=real.provider)
        if kind == "smtp":
            return Connection(smtp=f"{host}:25", sender=real.sender or f"flows@{host}", to=real.to, tls="none")
        if kind == "sql":
            return Connection(sql=f"sqlite:///{self._database(name)}")
        return Connection(ssh=host) if kind == "ssh" else Connection(webhook=f"http://{host}/notice")

    def _named(self, *kinds: str) -> list[str]:
        return [name for name, kind in self._kinds.items() if kind in kinds]

    # -- worlds ----------------------------------------------------------------------------------

    def open(self, stack: ExitStack) -> list[World]:
        """Open the stand-ins. They end with the stack. Before the flow is compiled: its functions are counted."""
        found: list[World] = []
        if self.topics:
            found.append(stack.enter_context(BrokerWorld()))
        if mailboxes := self._named("smtp"):
            found.append(stack.enter_context(SmtpWorld([self.host(name) for name in mailboxes])))
        if self._named("ssh"):
            found.append(stack.enter_context(SshWorld()))
        found += [stack.enter_context(closing(table)) for table in self._tables()]
        if calls := dict(self._calls()):
            found.append(stack.enter_context(closing(DeclaredCalls(calls))))
        if hosts := [self.host(name) for name in self._named("http", "webhook")]:
            found.append(stack.enter_context(self._http(hosts, _done_elsewhere([*found]))))
        return found

    def _http(self, hosts: list[str], elsewhere: Callable[[str], bool]) -> HttpWorld:
        answers, same = dict(self._answers()), [*self._same()]
        keyed = any(_is_keyed(step) for step in self._steps)
        return HttpWorld(hosts, answers=answers, honours_keys=keyed, same=same, elsewhere=elsewhere)

    def _answers(self) -> Iterator[tuple[str, Any]]:
        for written, answer in self._test.answers.items():
            given = {name: value for name, value in answer.items() if name != "again"}
            if "after" in given and "/" in given["after"]:
                given["after"] = self.pattern(given["after"])
            yield self.pattern(written), given

    def pattern(self, written: str) -> str:
        """Return `POST accounting /invoices` as the stand-in knows it."""
        asked = RequestPattern.read(written)
        if asked is None:
            raise Misuse(f"{written!r} is no request; write it as POST accounting /invoices.")
        return f"{asked.method} {self.host(asked.connection)}{asked.path}"

    def _same(self) -> Iterator[str]:
        """Requests that change nothing when they are repeated, beside PUT and DELETE."""
        for written, answer in self._test.answers.items():
            if answer.get("again") == SAME:
                yield self.pattern(written)
        for name in self._named("webhook"):
            yield f"POST {self.host(name)}/notice"
        for step in self._steps:
            spec = step.spec
            if isinstance(spec, HttpSpec) and spec.http.startswith(PATCHED_SAFELY) and spec.repeat == "safe":
                method, target, path = read_request(spec.http)
                yield f"{method} {self.host(target)}{path.partition('{')[0]}*"

    # -- tables and functions --------------------------------------------------------------------

    def _database(self, name: str) -> Path:
        return self._folder / f"{name}.db"

    def _tables(self) -> Iterator[TableWorld]:
        for name in self._named("sql"):
            path = self._database(name)
            path.unlink(missing_ok=True)
            with closing(sqlite3.connect(path)) as db:
                given = self._test.rows.get(name, [])
                for statement in [given] if isinstance(given, str) else given:
                    db.executescript(statement)
                for statement in self._tables_of_rows(name):
                    db.execute(statement)
                db.commit()
                made = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            yield from (TableWorld(f"sqlite:///{path}#{table}") for table in made)

    def _tables_of_rows(self, name: str) -> Iterator[str]:
        """The tables that rows are written into, if the test makes none: its columns, and its unique key."""
        columns: dict[str, dict[str, None]] = {}
        keys: dict[str, tuple[str, ...]] = {}
        for step in self._steps:
            if isinstance(step.spec, SqlSpec) and step.spec.sql == name:
                for row in filter(None, (step.spec.upsert, step.spec.insert_once, step.spec.find_or_create)):
                    columns.setdefault(row.table, {}).update(dict.fromkeys(row.row))
                    keys[row.table] = tuple(row.by)
        for table, names in columns.items():
            listed, unique = (", ".join(f'"{one}"' for one in some) for some in (names, keys[table]))
            yield f'CREATE TABLE IF NOT EXISTS "{table}" ({listed}, UNIQUE ({unique}))'

    def _calls(self) -> Iterator[tuple[str, bool]]:
        """The functions that are called, and whether each is declared safe."""
        for step in self._steps:
            if isinstance(step.spec, CallSpec):
                yield step.spec.call, step.spec.repeat == "safe"


def _kinds_of_probe(repeat: Any) -> Iterator[tuple[str, str]]:
    if isinstance(repeat, ProbeSpec) and isinstance(repeat.check, SqlLookSpec):
        yield repeat.check.sql, "sql"
    elif isinstance(repeat, ProbeSpec) and isinstance(repeat.check, str) and repeat.check.startswith("GET "):
        yield read_request(repeat.check)[1], "http"


def _is_keyed(step: ReadStep) -> bool:
    repeat = step.spec.repeat if isinstance(step.spec, ActingSpec) else None
    return repeat == "keyed" or (isinstance(repeat, ProbeSpec) and isinstance(repeat.keyed, str))


def _done_elsewhere(worlds: Iterable[World]) -> Callable[[str], bool]:
    """Whether an effect that `after` names by a word was done: `mail`, `ssh builder`."""
    known = list(worlds)

    def was_done(after: str) -> bool:
        return any(seen.startswith(after) for world in known for seen in world.look())

    return was_done


class DeclaredCalls:
    """Counts the calls of Python functions. A function that is declared safe counts once for the same arguments: its
    declaration says that a repeat changes nothing.
    """

    def __init__(self, calls: Mapping[str, bool]) -> None:
        self._seen: Counter[str] = Counter()
        self._restore: list[Callable[[], None]] = []
        for name, safe in calls.items():
            self._count(name, safe=safe)

    def reset(self) -> None: ...

    def look(self) -> dict[str, int]:
        return dict(self._seen)

    def close(self) -> None:
        for restore in self._restore:
            restore()

    def _count(self, name: str, *, safe: bool) -> None:
        module, _, attribute = name.partition(":")
        owner: Any = import_module(module)
        last, function = attribute, getattr(owner, attribute)
        if isinstance(step := getattr(function, "step", None), Step):
            safe = safe or step.plan.repeat.kind == "safe"
            owner, last, function = step, "function", step.function

        @functools.wraps(function)
        def counting(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            shown = [repr(value) for value in args] + [f"{given}={value!r}" for given, value in kwargs.items()]
            text = f"call {name}({', '.join(shown)})"[:200]
            self._seen[text] = 1 if safe else self._seen[text] + 1
            return result

        before = getattr(owner, last)
        setattr(owner, last, counting)
        self._restore.append(lambda: setattr(owner, last, before))
