"""Which calls reach outside, repeat, follow one another, or must be awaited and are not."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...flows.step import Step
from .source import SourceTree

__all__ = [
    "Arms",
    "begins_tasks",
    "begins_threads",
    "changes_each_time",
    "creates",
    "draws",
    "forgotten",
    "in_body",
    "is_awaited_call",
    "never_awaitable",
    "parts_of",
    "publishes",
    "reaches_outside",
    "step_of",
    "steps_in",
    "writes_files",
]


LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
Arm = tuple[int, int]  # which branch statement, and which of its branches


class Arms:
    """The branches of one function's body."""

    def __init__(self, body: Sequence[ast.AST]) -> None:
        self._of: dict[int, tuple[Arm, ...]] = {}
        self._left: set[Arm] = set()
        for node in body:
            self._enter(node, ())

    def can_follow(self, first: ast.AST, second: ast.AST) -> bool:
        before, after = self._of.get(id(first), ()), self._of.get(id(second), ())
        ways = dict(after)
        if any(ways.get(branching, way) != way for branching, way in before):
            return False
        return all(arm in after for arm in before if arm in self._left)

    def _enter(self, node: ast.AST, arms: tuple[Arm, ...]) -> None:
        self._of[id(node)] = arms
        inside = {id(child): way for way, block in enumerate(_ways(node)) for child in block}
        for way, block in enumerate(_ways(node)):
            if block and isinstance(block[-1], LEAVES):
                self._left.add((id(node), way))
        for child in ast.iter_child_nodes(node):
            taken = inside.get(id(child))
            self._enter(child, arms if taken is None else (*arms, (id(node), taken)))


def _ways(node: ast.AST) -> Iterator[Sequence[ast.AST]]:
    if isinstance(node, ast.If):
        yield from (node.body, node.orelse)
    elif isinstance(node, ast.IfExp):
        yield from ([node.body], [node.orelse])
    elif isinstance(node, ast.Match):
        yield from ([case] for case in node.cases)
    elif isinstance(node, ast.match_case):
        yield node.body


INSTALLED = {"site-packages", "dist-packages"}  # a virtual environment often lies in the project's directory
DEEPEST = 4  # how deep helpers are followed


def step_of(source: SourceTree, node: ast.AST) -> Step | None:
    found = getattr(source.meaning(node), "step", None)
    return found if isinstance(found, Step) else None


def steps_in(source: SourceTree) -> list[tuple[ast.Call, Step]]:
    """Steps in source order; `app.each(items, step)` calls one too."""
    return [(call, step) for call in source.calls() for step in _steps_of(source, call)]


def _steps_of(source: SourceTree, call: ast.Call) -> list[Step]:
    named = [call.func, *call.args, *(word.value for word in call.keywords)]
    return [step for node in named if (step := step_of(source, node)) is not None]


def in_body(source: SourceTree) -> Iterator[tuple[SourceTree, str]]:
    """The body itself, then the functions it calls, each once, with a phrase that says which."""
    for part in parts_of(source):
        here = part is source
        yield part, "in the flow's body" if here else f"in {part.function.__name__}(), which the flow's body calls"


def parts_of(source: SourceTree) -> Iterator[SourceTree]:
    """A function itself, then the functions of the same project that it calls, recursively, each once."""
    yield source
    seen: set[Any] = {source.function}
    level = [source]
    for _ in range(DEEPEST):
        called = dict.fromkeys(helper for part in level for helper in _helpers(part, source) if helper not in seen)
        seen.update(called)
        level = [SourceTree(helper) for helper in called]
        yield from level


def _helpers(part: SourceTree, flow: SourceTree) -> Iterator[Any]:
    """Plain functions of the same project. Decorated ones are ledgered, and not part of the body."""
    home = _home(flow)
    for call in part.calls():
        found = part.meaning(call.func)
        if inspect.isfunction(found) and not any(hasattr(found, mark) for mark in ("step", "flow", "once")):
            helper = inspect.unwrap(found)
            if _is_within(Path(helper.__code__.co_filename), home) and not _is_ours(helper):
                yield helper


def _is_ours(helper: Any) -> bool:
    """In a source checkout, twiceproof itself may lie in the project's directory."""
    return str(helper.__module__).partition(".")[0] == __name__.partition(".")[0]


def _home(flow: SourceTree) -> Path:
    """The directory from which the flow's module or package is imported."""
    above = list(Path(flow.file).parents)
    deep = str(getattr(flow.function, "__module__", None) or "").count(".")
    return above[min(deep, len(above) - 1)] if above else Path(flow.file)


def _is_within(file: Path, home: Path) -> bool:
    return file.is_relative_to(home) and INSTALLED.isdisjoint(file.relative_to(home).parts)


OUTSIDE = re.compile(
    r"(requests|httpx|httpx2|aiohttp|urllib3?|http\.client|smtplib|aiosmtplib|boto3|botocore|stripe|twilio|slack_sdk"
    r"|paramiko|asyncssh|subprocess|ftplib|pika|aio_pika|kafka|confluent_kafka|redis|psycopg|asyncpg|pymysql|_?sqlite3"
    r"|sqlalchemy|pymongo|azure|google\.cloud)\b"
)
SPEAKS = re.compile(
    r"(get|post|put|patch|delete|request|send|sendmail|send_message|urlopen|execute|executemany|run|call|check_call"
    r"|check_output|Popen|publish|upload|create|invoke|connect|stream)"
)
WRITES = re.compile(
    r"pathlib(\._local)?\.(Path|PosixPath|WindowsPath)\.(write_text|write_bytes|unlink|rename|replace|touch|rmdir|mkdir)"
    r"|shutil\.(copy|copy2|copyfile|copytree|move|rmtree)|(os|posix|nt)\.(remove|unlink|rename|replace|rmdir|mkdir|makedirs)"
)
OPENS = re.compile(r"_?io\.open|pathlib(\._local)?\.(Path|PosixPath|WindowsPath)\.open")
MADE_ANEW = {
    "time.time",
    "time.time_ns",
    "time.monotonic",
    "time.perf_counter",
    "time.localtime",
    "time.gmtime",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
    "uuid.uuid1",
    "uuid.uuid4",
    "uuid.uuid6",
    "uuid.uuid7",
    "os.urandom",
    "os.getpid",
}
THREADS = re.compile(
    r"(concurrent\.futures|multiprocessing)\.(.*\.)?(\w*Executor|\w*Pool|Process|submit|map|starmap|apply_async)"
    r"|threading\.(Thread|Timer)|_thread\.start_new_thread|(.*\.)?run_in_executor"
)
DICE = re.compile(r"(random|secrets|numpy\.random)\.")
DRAWN = re.compile(r"uuid\.uuid[1467]|os\.urandom|(random|secrets|numpy\.random)\..*")
POSTS = re.compile(r"\.(post|create|insert|insert_one|insert_many|add)$")
PUBLISHES = re.compile(
    r".*\.(basic_publish|xadd|produce|send_messages)|(twiceproof\.brokers|aio_pika|faststream|kombu|nats|redis)\b.*\.publish"
    r"|(.*[._])?(broker|channel|exchange|producer|jetstream|js|nc|publisher)\.(publish|send|send_and_wait)"
)
PLAIN_INSERT = re.compile(r"\binsert\s+into\b", re.IGNORECASE)
UPSERT = re.compile(r"\bon\s+(conflict|duplicate)\b|\binsert\s+or\s+(ignore|replace)\b|\bwhere\s+not\s+exists\b", re.I)


def reaches_outside(path: str) -> bool:
    """A call of a known client. Creating a client reaches nothing; using it does."""
    return bool(OUTSIDE.match(path)) and bool(SPEAKS.fullmatch(path.rsplit(".", 1)[-1]))


def writes_files(path: str, given: Sequence[str]) -> bool:
    """`given` are the literal texts among the arguments: a file mode is one of them."""
    return bool(WRITES.fullmatch(path)) or bool(
        OPENS.fullmatch(path) and any(re.fullmatch(r"[rbt+]*[wax+][rwaxbt+]*", text) for text in given)
    )


def changes_each_time(path: str) -> bool:
    return path in MADE_ANEW or bool(DICE.match(path))


def begins_threads(path: str) -> bool:
    """Threads and processes without the run's context. `asyncio.to_thread` carries it along."""
    return bool(THREADS.fullmatch(path))


def draws(path: str) -> bool:
    """Whether the value is new in each attempt. Reading a clock for a log does not count."""
    return bool(DRAWN.fullmatch(path))


def creates(path: str, text: str | None) -> bool:
    """Whether a call creates something new each time, as far as its name or its SQL shows."""
    if text is not None and PLAIN_INSERT.search(text):
        return not UPSERT.search(text)
    return bool(OUTSIDE.match(path) and POSTS.search("." + path.rsplit(".", 1)[-1]))


def publishes(path: str) -> bool:
    """Whether a message is handed to a broker, as far as the name of the client or of its variable shows."""
    return bool(PUBLISHES.fullmatch(path))


OF_APP = {"sleep", "wait_for", "waiting_for", "approve", "remote", "callback_url", "gather", "each", "send"}
OURS = re.compile(r"twiceproof\.app\.\w+\.\w+\.(\w+)")
TASKS = re.compile(
    r"asyncio\.(tasks\.)?(gather|wait|as_completed|create_task|ensure_future)|asyncio\.(taskgroups\.)?TaskGroup\.create_task"
)
RUNS = re.compile(r"asyncio\.(runners\.)?(run|Runner\.run)|(.*\.)?run_until_complete")
HANDS_ON = (ast.Call, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Starred, ast.keyword, ast.Yield)


def is_awaited_call(source: SourceTree, call: ast.Call, *, awaits: bool) -> str:
    """The called name, if the call must be awaited: an `async def` step, flow or guarded function.

    `awaits`: in an `async def` flow, where `app.sleep` and the like are awaited too.
    """
    found = source.meaning(call.func)
    if _is_async(found):
        return ast.unparse(call.func)
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("start", "start_many", "retry"):
        return ast.unparse(call.func) if _is_async(source.meaning(call.func.value)) else ""
    ours = OURS.fullmatch(source.path(call.func)) if awaits else None
    return ast.unparse(call.func) if ours is not None and ours[1] in OF_APP else ""


def _is_async(found: Any) -> bool:
    """Whether it is one of ours. Python itself warns about other coroutines."""
    declared = next((getattr(found, mark) for mark in ("step", "flow", "once") if hasattr(found, mark)), None)
    return inspect.iscoroutinefunction(getattr(declared, "function", None))


def forgotten(source: SourceTree, *, awaits: bool) -> Iterator[tuple[ast.Call, str]]:
    """Calls whose coroutine is dropped: a statement of its own, or a name that is neither awaited nor passed on."""
    handed_on = set(_handed_on(source))
    for node in source.nodes(ast.Expr, ast.Assign, ast.AnnAssign, ast.Return):
        call = getattr(node, "value", None)
        if not isinstance(call, ast.Call) or not (what := is_awaited_call(source, call, awaits=awaits)):
            continue
        if isinstance(node, ast.Return):
            lost = isinstance(source.tree, ast.AsyncFunctionDef)  # a helper that is a `def` passes it on
        else:
            lost = not any(name in handed_on for name in _targets(node))
        if lost:
            yield call, what


def _targets(node: ast.AST) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    for target in targets:
        yield target.id if isinstance(target, ast.Name) else ANYTHING if target is not None else ""


ANYTHING = "*"  # stored in an object or unpacked: what becomes of it is unknown


def _handed_on(source: SourceTree) -> Iterator[str]:
    """Names that are awaited, or passed to a call that may await them."""
    yield ANYTHING
    for node in source.nodes(ast.Await, ast.Return, *HANDS_ON):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Name):
                yield child.id


def begins_tasks(source: SourceTree, call: ast.Call) -> str:
    """The asyncio function that is given our calls, such as "asyncio.gather"."""
    path = source.path(call.func)
    if not TASKS.fullmatch(path):
        return ""
    given = [*call.args, *(word.value for word in call.keywords)]
    inside = (one for root in given for one in source.calls(root))
    return ast.unparse(call.func) if any(is_awaited_call(source, one, awaits=True) for one in inside) else ""


def never_awaitable(source: SourceTree) -> Iterator[tuple[ast.Call, str]]:
    """In a `def` flow: calls of `async def` steps, apart from those given to `asyncio.run`."""
    run = {
        id(inner)
        for call in source.calls()
        if RUNS.fullmatch(source.path(call.func))
        for root in call.args
        for inner in source.calls(root)
    }
    for call in source.calls():
        what = is_awaited_call(source, call, awaits=False)
        if what and id(call) not in run:
            yield call, what
