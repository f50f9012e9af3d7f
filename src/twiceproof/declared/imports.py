"""Workflows of n8n as flow files. Every node with an effect becomes a step with `repeat: never`: such a workflow does
not say how it may be repeated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from ..errors import Misuse

__all__ = ["ImportedFlow", "import_n8n"]


_NOT_NAME = re.compile(r"[^A-Za-z0-9]+")
_FIELD = re.compile(r"\{\{\s*(.*?)\s*\}\}")
_HERE = re.compile(r"\$json((?:\.[A-Za-z_]\w*|\[\d+\])*)")
_OF_NODE = re.compile(
    r"\$(?:\((?P<q>['\"])(?P<call>.+?)(?P=q)\)\.(?:item|first\(\)|last\(\))|node\[(?P<r>['\"])(?P<old>.+?)(?P=r)\])"
    r"\.json(?P<path>(?:\.[A-Za-z_]\w*|\[\d+\])*)"
)
TRIGGERS = ("webhook", "manualTrigger", "scheduleTrigger", "cron", "start", "formTrigger")
UNITS = {"seconds": "s", "minutes": "m", "hours": "h", "days": "d", "weeks": "w"}
DEFAULT_INTERVALS = {"seconds": 30, "minutes": 5}
SIGNS = {"equals": "==", "equal": "==", "notEquals": "!=", "notEqual": "!=", "gt": ">", "larger": ">", "gte": ">="}
SIGNS |= {"lt": "<", "smaller": "<", "lte": "<=", "largerEqual": ">=", "smallerEqual": "<="}


class ImportedFlow(Struct, frozen=True):
    """A file's data, the steps that must be declared, what was not translated, and the connections that it needs."""

    name: str
    data: dict[str, Any]
    to_declare: tuple[str, ...]
    untranslated: tuple[str, ...]
    connections: dict[str, dict[str, Any]]


def import_n8n(workflow: Mapping[str, Any], name: str = "") -> ImportedFlow:
    """Translate a workflow as n8n exports it. Raises Misuse for what is none.

    Args:
        workflow: The parsed JSON: `nodes` and `connections`.
        name: The flow's name; by default the workflow's own.
    """
    nodes = workflow.get("nodes") if isinstance(workflow, Mapping) else None
    if not isinstance(nodes, list) or not all(isinstance(node, dict) and "type" in node for node in nodes):
        raise Misuse("This is no workflow of n8n: it has no list of nodes. Export it with Download, as JSON.")
    try:
        return _Workflow(workflow, name or str(workflow.get("name") or "imported")).made()
    except (AttributeError, TypeError, LookupError) as error:
        raise Misuse(
            f"This workflow is not built as n8n exports one ({error}). Export it anew with Download, as JSON."
        ) from None


def _apart(names: Iterable[str]) -> dict[str, str]:
    """Return an identifier for each name; those of two names differ, as `Send it!` and `Send it?` do."""
    made: dict[str, str] = {}
    for name in names:
        wanted = found = _identifier(name)
        number = 2
        while found in made.values():
            found, number = f"{wanted}_{number}", number + 1
        made[name] = found
    return made


def _identifier(text: str) -> str:
    made = _NOT_NAME.sub("_", text).strip("_").lower()
    return made if made[:1].isalpha() else f"step_{made}"


class _Workflow:
    def __init__(self, workflow: Mapping[str, Any], name: str) -> None:
        self._name = _identifier(name)
        self._nodes = {str(node.get("name")): node for node in workflow["nodes"]}
        self._links = workflow.get("connections") or {}
        self._uses: dict[str, dict[str, Any]] = {}
        self._declare: list[str] = []
        self._open: list[str] = []
        self._names = _apart(self._nodes)

    def made(self) -> ImportedFlow:
        first = [name for name in self._nodes if self._kind(name) in TRIGGERS]
        triggers = [found for name in first if (found := self._trigger(name)) is not None]
        steps = [*self._after(first[0] if first else "", set(first))]
        data = {
            "flow": self._name,
            "about": "Imported from n8n; say of every step how it may be repeated.",
            "input": {"event": "any"},
            "key": f"{self._name}:{{event.id}}",
            "uses": list(self._uses),
            "on": triggers or ["manual"],
            "steps": steps or [{"done": None}],
        }
        return ImportedFlow(self._name, data, tuple(self._declare), tuple(self._open), self._uses)

    def _kind(self, name: str) -> str:
        return str(self._nodes[name].get("type", "")).rpartition(".")[2]

    def _parameters(self, name: str) -> Mapping[str, Any]:
        found = self._nodes[name].get("parameters")
        return found if isinstance(found, dict) else {}

    # -- triggers --------------------------------------------------------------------------------

    def _trigger(self, name: str) -> Any:
        kind, given = self._kind(name), self._parameters(name)
        if kind == "webhook":
            secret = f"env:{self._name.upper()}_SECRET"
            return {
                "webhook": "generic",
                "name": self._name,
                "secret": secret,
                "id": "body.id",
                "give": {"event": "=body"},
            }
        if kind in ("scheduleTrigger", "cron"):
            rules = (given.get("rule") or {}).get("interval") or [{}]
            if len(rules) > 1:
                self._open.append(f"{name}: of its {len(rules)} times only the first: write a trigger for each")
            return {**self._times(name, rules[0]), "give": {"event": '={"id": tick}'}}
        return "manual"

    def _times(self, name: str, rule: Mapping[str, Any]) -> dict[str, Any]:
        """Return when a schedule fires. What is not translated is told: another time would be taken for the one that
        was meant. n8n leaves fields out that have their default."""
        field = str(rule.get("field", "days"))
        number = rule.get(f"{field}Interval", DEFAULT_INTERVALS.get(field, 1))
        cron = str(rule.get("expression", "")).removeprefix("=").split()
        hour, minute = rule.get("triggerAtHour", 0), rule.get("triggerAtMinute", 0)
        if field == "cronExpression" and (len(cron) == 5 or (len(cron) == 6 and cron[0] == "0")):
            return {"schedule": " ".join(cron[-5:])}
        if field == "days" and number == 1:
            return {"schedule": f"{minute} {hour} * * *"}
        if field not in ("seconds", "minutes", "hours") or not isinstance(number, int):
            self._open.append(f'{name}: its times: write schedule: "minute hour day month weekday"')
            return {"every": "1d"}
        return {"every": f"{number}{UNITS[field]}"}

    # -- steps -----------------------------------------------------------------------------------

    def _after(self, name: str, seen: set[str]) -> Iterator[dict[str, Any]]:
        """Return the steps that follow a node, by its first exit; an IF has two."""
        for target in self._targets(name, 0):
            if target in seen or target not in self._nodes:
                continue
            seen.add(target)
            if self._kind(target) == "if":
                yield self._choice(target, name, seen)
                continue
            step = self._step(target, name)
            if step is not None:
                yield step
            yield from self._after(target, seen)

    def _targets(self, name: str, exit_number: int) -> list[str]:
        exits = (self._links.get(name) or {}).get("main") or []
        links = exits[exit_number] if exit_number < len(exits) else []
        return [str(link.get("node")) for link in links or []]

    def _choice(self, name: str, before: str, seen: set[str]) -> dict[str, Any]:
        ways = []
        for number in (0, 1):
            steps: list[dict[str, Any]] = []
            for target in self._targets(name, number):
                if target not in seen:
                    seen.add(target)
                    steps += [step for step in (self._step(target, before),) if step is not None]
                    steps += self._after(target, seen)
            ways.append(steps or [{"set": {f"{_identifier(name)}_{number}": True}}])
        return {"choose": [{"when": self._condition(name, before), "do": ways[0]}, {"else": ways[1]}]}

    def _condition(self, name: str, before: str) -> str:
        given = self._parameters(name).get("conditions") or {}
        found = given.get("conditions") if isinstance(given, dict) else None
        tests = (
            found
            if isinstance(found, list)
            else [one for some in given.values() if isinstance(some, list) for one in some]
        )
        made = [self._test(test, name, before) for test in tests if isinstance(test, dict)]
        is_any = isinstance(given, dict) and given.get("combinator") == "or"
        is_any = is_any or self._parameters(name).get("combineOperation") == "any"
        return (
            (" or " if is_any else " and ").join(made)
            if made
            else str(self._not_translated(f"{name}: its condition", "true"))
        )

    def _test(self, test: Mapping[str, Any], name: str, before: str) -> str:
        operator = test.get("operator") or {}
        word = str(operator.get("operation") if isinstance(operator, dict) else test.get("operation") or "equals")
        left = self._operand(test.get("leftValue", test.get("value1")), before)
        right = self._operand(test.get("rightValue", test.get("value2")), before)
        if word not in SIGNS or left is None or right is None:
            return str(self._not_translated(f"{name}: {word}", "true"))
        return f"{left} {SIGNS[word]} {right}"

    def _operand(self, value: Any, before: str) -> str | None:
        if isinstance(value, str) and value.startswith("="):
            field = _FIELD.fullmatch(value[1:].strip())
            return None if field is None else self._path(field[1], before)
        return (
            {True: "true", False: "false", None: "null"}.get(value, repr(value))
            if not isinstance(value, str)
            else json.dumps(value, ensure_ascii=False)  # quoted: a quote in it does not end it
        )

    def _step(self, name: str, before: str) -> dict[str, Any] | None:
        kind, given = self._kind(name), self._parameters(name)
        make = {
            "httpRequest": self._http,
            "set": self._set,
            "wait": self._wait,
            "emailSend": self._mail,
            "postgres": self._sql,
        }.get(kind)
        if make is not None:
            return make(name, given, before)
        if kind not in ("noOp", "respondToWebhook", "stickyNote", "merge"):
            self._open.append(f"{name} ({kind}): write this step, or call a Python function")
        return None

    def _http(self, name: str, given: Mapping[str, Any], before: str) -> dict[str, Any]:
        method = str(given.get("method") or given.get("requestMethod") or "GET").upper()
        url = str(given.get("url") or "").removeprefix("=")
        parts = urlsplit(url if "//" in url else f"https://{url}")
        connection = self._connection(name, parts.scheme, parts.netloc)
        path = self._text(parts.path or "/", before) + (f"?{self._text(parts.query, before)}" if parts.query else "")
        step: dict[str, Any] = {"step": self._names[name], "http": f"{method} {connection} {path}"}
        for field, of in (("query", "queryParameters"), ("headers", "headerParameters")):
            rows = (given.get(of) or {}).get("parameters")
            if isinstance(rows, list) and rows:
                step[field] = {str(row.get("name")): self._value(row.get("value"), before) for row in rows}
        if given.get("authentication", "none") != "none":
            self._open.append(f"{name}: its credentials: give {connection} bearer: env:NAME in connections.yaml")
        body = self._body(given, before)
        if body is not None:
            step["form" if given.get("contentType") == "form-urlencoded" else "json"] = body
        return step if method in ("GET", "HEAD") else self._undeclared(step)

    def _connection(self, name: str, scheme: str, place: str) -> str:
        if not place or "{" in place:
            self._open.append(f"{name}: its address is an expression: give the host in connections.yaml")
            scheme, place = "https", "service.example"
        host = place.rpartition("@")[2].partition(":")[0]
        connection = _identifier(host.removeprefix("api.").split(".")[0])
        self._uses.setdefault(connection, {"live": {"http": f"{scheme or 'https'}://{place.rpartition('@')[2]}"}})
        return connection

    def _body(self, given: Mapping[str, Any], before: str) -> Any:
        rows = (given.get("bodyParameters") or {}).get("parameters")
        if isinstance(rows, list) and rows:
            return {str(row.get("name")): self._value(row.get("value"), before) for row in rows}
        text = given.get("jsonBody")
        if not isinstance(text, str):
            return None
        try:
            return self._value(json.loads(text.removeprefix("=")), before)
        except ValueError:
            return self._not_translated("a JSON body", {})

    def _set(self, name: str, given: Mapping[str, Any], before: str) -> dict[str, Any]:
        rows = (given.get("assignments") or {}).get("assignments") or []
        values = given.get("values")
        if not rows and isinstance(values, dict):
            rows = [row for kind in values.values() for row in kind]
        return {"set": {self._names[name]: "=" + self._map(rows, before)}}

    def _map(self, rows: list[Any], before: str) -> str:
        pairs = [f"{json.dumps(str(row.get('name')))}: {self._operand_of(row.get('value'), before)}" for row in rows]
        return "{" + ", ".join(pairs) + "}"

    def _operand_of(self, value: Any, before: str) -> str:
        found = self._operand(value, before)
        return found if found is not None else str(self._not_translated(f"{value!r}", "null"))

    def _wait(self, name: str, given: Mapping[str, Any], before: str) -> dict[str, Any]:
        amount = given.get("amount")
        is_told = isinstance(amount, int | float) and given.get("unit") in UNITS
        if not is_told or given.get("resume", "timeInterval") != "timeInterval":
            self._open.append(f"{name}: how long it waits: write sleep: 1h, until: or wait:")
            return {"sleep": "1h"}
        return {"sleep": f"{amount}{UNITS[str(given['unit'])]}"}

    def _mail(self, name: str, given: Mapping[str, Any], before: str) -> dict[str, Any]:
        sender = str(given.get("fromEmail") or "flows@example.com")
        self._uses.setdefault("mail", {"live": {"smtp": "smtp.example.com:587", "from": sender}})
        step = {"step": self._names[name], "mail": "mail", "to": self._value(given.get("toEmail"), before)}
        step |= {"subject": self._value(given.get("subject"), before), "text": self._value(given.get("text"), before)}
        return self._undeclared({field: value or "-" for field, value in step.items()})

    def _sql(self, name: str, given: Mapping[str, Any], before: str) -> dict[str, Any] | None:
        query = str(given.get("query") or "")
        if not query or "{{" in query or "{" in query:
            self._open.append(f"{name} (postgres): write the statement with :name and with: {{name: =…}}")
            return None
        self._uses.setdefault("postgres", {"live": {"sql": "env:DATABASE_URL"}})
        return self._undeclared({"step": self._names[name], "sql": "postgres", "run": query})

    def _undeclared(self, step: dict[str, Any]) -> dict[str, Any]:
        self._declare.append(step["step"])
        return {**step, "repeat": "never"}

    # -- expressions -----------------------------------------------------------------------------

    def _value(self, value: Any, before: str) -> Any:
        if isinstance(value, dict):
            return {name: self._value(inner, before) for name, inner in value.items()}
        if isinstance(value, list):
            return [self._value(inner, before) for inner in value]
        if not isinstance(value, str):
            return value
        whole = _FIELD.fullmatch(value.removeprefix("=").strip())
        if whole is not None and value.startswith("="):
            found = self._path(whole[1], before)
            return f"={found}" if found is not None else self._not_translated(whole[0], "")
        return self._text(value.removeprefix("=") if value.startswith("=") else value, before)

    def _text(self, text: str, before: str) -> str:
        """A text with fields; other braces are doubled."""
        made, end = "", 0
        for field in _FIELD.finditer(text):
            path = self._path(field[1], before)
            made += _doubled(text[end : field.start()])
            made += f"{{{path}}}" if path is not None else str(self._not_translated(field[0], "-"))
            end = field.end()
        return made + _doubled(text[end:])

    def _path(self, source: str, before: str) -> str | None:
        """`$json.a.b` and `$('Node').item.json.a` as paths; None for anything else."""
        here, other = _HERE.fullmatch(source), _OF_NODE.fullmatch(source)
        if here is not None:
            return self._result_of(before) + self._fields(here[1], before)
        if other is not None:
            name = other["call"] or other["old"]
            return self._result_of(name) + self._fields(other["path"], name) if name in self._nodes else None
        return None

    def _fields(self, path: str, node: str) -> str:
        """Return the input's fields. A webhook's item has the payload in `body`."""
        is_hook = node in self._nodes and self._kind(node) == "webhook"
        return re.sub(r"^\.body(?=[.\[]|$)", "", path) if is_hook else path

    def _result_of(self, node: str) -> str:
        return "event" if node not in self._nodes or self._kind(node) in TRIGGERS else self._names[node]

    def _not_translated(self, what: str, instead: Any) -> Any:
        self._open.append(f"{what}: write it as an expression of flows")
        return instead


def _doubled(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
