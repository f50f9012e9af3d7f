"""The steps of a file: how each may be repeated, what it needs, and in which order they stand."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from ..errors import Misuse, TwiceproofError
from ..keys.duration import seconds
from .connections import Connections
from .expression import ExpressionError
from .findings import LintFindings
from .lint_names import ALWAYS
from .model import (
    ActingSpec,
    ApproveSpec,
    EachSpec,
    FlowFile,
    HttpSpec,
    ProbeSpec,
    RemoteSpec,
    SetSpec,
    SqlLookSpec,
    SqlSpec,
)
from .names import imported, read_request
from .nodes import Path
from .reading import ReadFlow, ReadStep, walk
from .sql_statement import read_statement

__all__ = ["StepsCheck"]


CONNECTION = {"http": "http", "sql": "sql", "mail": "smtp", "notify": "notice"}
NOTICE = ("webhook", "log", "smtp")
HARMLESS = ("GET", "HEAD")
PARTS = {
    "http": ("httpcore2", "http"),
    "remote": ("asyncssh", "ssh"),
}  # verb: its package, and the extra that brings it
WAITING = ("wait", "approve", "sleep", "until", "remote")
AFTER_FAILURE = ("http", "sql", "mail", "notify", "call", "set", "choose", "publish", "keep", "done", "fail")
DURATIONS = ("timeout", "sleep")
SQL_VERBS = ("upsert", "insert_once", "find_or_create", "query", "run")
ROW_VERBS = SQL_VERBS[:3]


class StepsCheck:
    """Checks each step of a file, and their order."""

    def __init__(self, read: ReadFlow, file: FlowFile, findings: LintFindings, known: Connections | None) -> None:
        self._read = read
        self._file = file
        self._findings = findings
        self._known = known

    def run(self) -> None:
        self._unique_names()
        for step in walk((*self._read.steps, *self._read.on_error)):
            self._repeat(step)
            self._connection(step)
            self._form(step)
            self._durations(step)
            self._part(step)
            self._command(step)
        for step in self._after_failures():
            self._after_failure(step)
        self._order_of_danger()
        self._undone_too_late()

    def _command(self, step: ReadStep) -> None:
        """A text is read by the shell of the other machine, so a value in it could be a command of its own."""
        command = step.spec.command if isinstance(step.spec, RemoteSpec) else None
        if isinstance(command, str) and (command.startswith("=") or "{" in command.replace("{{", "")):
            found = "a text is run by a shell, where a value in it could be a command of its own"
            instead = 'a list, whose items are passed as they are: [run-agent, --id, "{order.id}"]'
            self._findings.report("command", (*step.path, "command"), found, instead)

    # -- names -----------------------------------------------------------------------------------

    def _unique_names(self) -> None:
        seen = dict.fromkeys((*self._file.input, *ALWAYS), 0)
        for step in walk((*self._read.steps, *self._read.on_error)):
            line = self._findings.line(step.path)
            names = list(step.spec.set) if isinstance(step.spec, SetSpec) else [step.name] if step.name else []
            for name in names:
                if name in seen and not isinstance(step.spec, SetSpec):
                    before = f"line {seen[name]}" if seen[name] else "an input, or a name of ours"
                    found = f"{name} is the name of something else already ({before})"
                    self._findings.report("duplicate-name", step.path, found, "a name of its own")
                seen.setdefault(name, line)

    # -- how it may be repeated ------------------------------------------------------------------

    def _repeat(self, step: ReadStep) -> None:
        spec = step.spec
        if not isinstance(spec, ActingSpec):
            return
        if spec.repeat is None and not _declares_itself(step):
            what = spec.http.partition(" ")[0] if isinstance(spec, HttpSpec) else step.verb
            found = f"{step.name or step.verb}: {what} acts outside, and no repeat is given"
            instead = "repeat: never (a person is asked), {check: GET …, found: …}, {keyed: Idempotency-Key}, or safe"
            self._findings.report("undeclared-step", step.path, found, instead)
        if isinstance(spec.repeat, ProbeSpec):
            self._probe(spec.repeat, (*step.path, "repeat"))
        if step.verb != "http" and (spec.repeat == "keyed" or _is_keyed(spec.repeat)):
            found = f"{step.verb} sends no key: only http can be keyed"
            self._findings.report("shape", (*step.path, "repeat"), found, "never, check or safe")

    def _probe(self, repeat: ProbeSpec, path: Path) -> None:
        given = [name for name in ("check", "keyed") if isinstance(getattr(repeat, name), str | SqlLookSpec)]
        if len(given) != 1:
            self._findings.report("shape", path, "repeat has check, or keyed", "repeat: {check: GET …, found: …}")
        elif isinstance(repeat.check, SqlLookSpec):
            self._statement(repeat.check.query, {*repeat.check.given}, (*path, "check", "query"), reads=True)
        elif isinstance(repeat.check, str):
            self._look(repeat.check, (*path, "check"))
        for name in ("settle", "window"):
            self._duration(getattr(repeat, name), (*path, name))

    def _look(self, check: str, path: Path) -> None:
        if " " in check and not check.startswith("GET "):
            found = f"check: {check.partition(' ')[0]} … would act; a probe only looks"
            self._findings.report("probe-acts", path, found, "GET, or {check: module:function}")
        elif " " not in check:
            self._function(check, path)

    def _function(self, name: str, path: Path) -> None:
        try:
            imported(name)
        except Misuse as error:
            found, _, instead = str(error).partition("; ")
            self._findings.report("unknown-function", path, found, instead, level="warning")

    # -- connections -----------------------------------------------------------------------------

    def _connection(self, step: ReadStep) -> None:
        for path, text, kind in _connections_of(step):
            try:
                target = read_request(text)[1] if kind == "http" else text
            except Misuse as error:
                self._findings.report("request", path, str(error).partition(";")[0], "POST accounting /invoices")
                continue
            if target not in self._file.uses:
                found = f"the connection {target} is not among uses"
                instead = f"uses: [{', '.join([*self._file.uses, target])}]"
                self._findings.report("unknown-connection", path, found, instead)
            elif self._known is not None:
                self._known_connection(self._known, target, kind, path)

    def _known_connection(self, known: Connections, target: str, kind: str, path: Path) -> None:
        kinds: Any = NOTICE if kind == "notice" else (kind,)
        try:
            known.get(target, *kinds)
        except Misuse as error:
            found = str(error).partition(";")[0]
            self._findings.report("unknown-connection", path, found, f"add {target} to {known.file}")

    # -- what the types alone do not say ---------------------------------------------------------

    def _form(self, step: ReadStep) -> None:
        spec = step.spec
        if step.verb in ("http", "sql", "mail", "call", "remote", "keep") and not step.name:
            found = "a step that acts needs a name in the ledger"
            self._findings.report("unnamed-step", step.path, found, "- step: invoice")
        if isinstance(spec, EachSpec) and spec.id is None:
            found = "without an id, an item that moves in the list is taken for another one"
            self._findings.report("each-without-id", step.path, found, 'id: "{item.sku}"')
        if isinstance(spec, SqlSpec):
            self._rows(step, spec)
        if step.verb == "call":
            self._function(str(getattr(spec, "call", "")), (*step.path, "call"))
        if isinstance(spec, ApproveSpec) and spec.default is not None and spec.timeout is None:
            found = f"{spec.approve}: default is what a time-out answers, and there is none"
            self._findings.report("shape", (*step.path, "default"), found, "timeout: 2d")
        inner = [*walk(step.steps)] if step.verb in ("each", "together") else []
        for ending in (one for one in inner if one.verb == "done"):
            found = "the flow cannot end inside each or together"
            self._findings.report("done", ending.path, found, "done after it, with if")

    def _rows(self, step: ReadStep, spec: SqlSpec) -> None:
        asked = [name for name in SQL_VERBS if getattr(spec, name) is not None]
        if len(asked) != 1:
            self._findings.report("shape", step.path, f"sql takes one of {', '.join(SQL_VERBS)}", "upsert: {…}")
            return
        if asked[0] in ("query", "run"):
            path = (*step.path, asked[0])
            self._statement(str(getattr(spec, asked[0])), {*spec.given}, path, reads=asked[0] == "query")
            return
        row = getattr(spec, asked[0])
        for column in (column for column in row.by if column not in row.row):
            found = f"the key column {column} is not in row"
            self._findings.report("shape", (*step.path, asked[0], "by"), found, f"{column}: …")

    def _statement(self, text: str, given: set[str], path: Path, *, reads: bool) -> None:
        try:
            statement = read_statement(text)
        except ExpressionError as error:
            self._findings.report("sql", path, str(error), "WHERE id = :id", column=error.column + 1, within=text)
            return
        for name in sorted({*statement.names} ^ given):
            missing = name in statement.names
            found = f":{name} has no value in with" if missing else f"{name} stands in with, and not in the statement"
            self._findings.report("sql", path, found, f"with: {{{name}: =…}}" if missing else f":{name}")
        if reads and not statement.only_reads:
            self._findings.report("probe-acts", path, "this query would write", "run: …, and repeat")

    def _durations(self, step: ReadStep) -> None:
        for name in DURATIONS:
            self._duration(getattr(step.spec, name, None), (*step.path, name))
        retry = getattr(step.spec, "retry", None)
        for name in ("first", "most", "within") if retry is not None else ():
            self._duration(getattr(retry, name), (*step.path, "retry", name))

    def _duration(self, value: Any, path: Path) -> None:
        if value is None:
            return
        try:
            seconds(value, name=str(path[-1]), positive=False)
        except TwiceproofError as error:
            found, _, instead = str(error).partition("; ")
            self._findings.report("type", path, found, instead or "2d, 6h, 90s")

    def _part(self, step: ReadStep) -> None:
        package, extra = PARTS.get("http" if step.verb == "notify" else step.verb, ("", ""))
        if package and find_spec(package) is None:
            found = f"{step.verb} needs {package}, which is not installed"
            self._findings.report("missing-part", step.path, found, f"pip install 'twiceproof[{extra}]'")

    # -- after a failure -------------------------------------------------------------------------

    def _after_failures(self) -> Iterator[ReadStep]:
        yield from walk(self._read.on_error)

    def _after_failure(self, step: ReadStep) -> None:
        """Check the steps after a final failure: they end the run, so they cannot wait and are not undone."""
        if step.verb not in AFTER_FAILURE:
            found = f"{step.verb} does not belong into on_error: the run ends there"
            self._findings.report("on-error", step.path, found, f"one of {', '.join(AFTER_FAILURE)}")
        if step.undo is not None:
            found = "what follows a failure is not undone"
            self._findings.report("on-error", (*step.path, "undo"), found, "leave undo out")

    # -- order -----------------------------------------------------------------------------------

    def _order_of_danger(self) -> None:
        """Check that a step that cannot be undone comes last: a later step might fail."""
        acting = [step for step in self._read.steps if isinstance(step.spec, ActingSpec)]
        for number, step in enumerate(acting):
            later = acting[number + 1 :]
            if getattr(step.spec, "repeat", None) == "never" and step.undo is None and later:
                names = ", ".join(other.name for other in later)
                found = f"{step.name} (never) cannot be taken back, and stands before {names}"
                self._findings.report("dangerous-before-safe", step.path, found, "put it last, or give it an undo")

    def _undone_too_late(self) -> None:
        """Check that a step with an effect has an undo, if a later step may end the flow."""
        steps = self._read.steps
        for number, step in enumerate(steps):
            creates = isinstance(step.spec, HttpSpec) and step.spec.http.startswith("POST ")
            end = next((later for later in steps[number + 1 :] if _may_fail(later)), None)
            if creates and step.undo is None and getattr(step.spec, "repeat", "") != "never" and end is not None:
                found = f"{step.name} creates something, has no undo, and stands before {end.name or end.verb}"
                instead = f"put {end.name or end.verb} first, or give {step.name} an undo"
                self._findings.report("missing-undo", step.path, found, instead, level="warning")


def _may_fail(step: ReadStep) -> bool:
    if isinstance(step.spec, ApproveSpec):
        return step.spec.default != "approve" or step.spec.timeout is None
    return step.verb == "fail"


def _is_keyed(repeat: Any) -> bool:
    return isinstance(repeat, ProbeSpec) and isinstance(repeat.keyed, str)


def _declares_itself(step: ReadStep) -> bool:
    """Whether a step's repeat follows from what it does: a request that only reads, a row by its key, a query, a
    function under @app.step.
    """
    spec = step.spec
    if isinstance(spec, HttpSpec):
        return spec.http.partition(" ")[0] in HARMLESS
    if step.verb == "call":
        try:
            return hasattr(imported(str(getattr(spec, "call", ""))), "step")
        except Misuse:
            return False
    return isinstance(spec, SqlSpec) and spec.run is None


def _connections_of(step: ReadStep) -> Iterator[tuple[Path, str, str]]:
    spec, path = step.spec, step.path
    kind = CONNECTION.get(step.verb)
    if kind is not None:
        yield (*path, step.verb), str(getattr(spec, step.verb)), kind
    if isinstance(spec, RemoteSpec):
        yield (*path, "remote"), spec.remote.partition(" ")[2].strip(), "ssh"
    if isinstance(spec, ApproveSpec) and spec.ask is not None:
        yield (*path, "ask", "notify"), spec.ask.notify, "notice"
    repeat = getattr(spec, "repeat", None)
    if not isinstance(repeat, ProbeSpec):
        return
    if isinstance(repeat.check, SqlLookSpec):
        yield (*path, "repeat", "check", "sql"), repeat.check.sql, "sql"
    elif isinstance(repeat.check, str) and repeat.check.startswith("GET "):
        yield (*path, "repeat", "check"), repeat.check, "http"
