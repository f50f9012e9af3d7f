"""Proves the tests of a flow's file: each is run under every fault, and compared with its expectations."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from ..app.app import App
from ..app.functions import wrapped_flow
from ..declared.connections import Connections
from ..declared.expression import plain
from ..declared.flow_files import SUFFIX, compile_file
from ..declared.input_schema import text_of_file
from ..declared.lint_triggers import FlowTestExpectations, read_expectations
from ..declared.live import CompiledRelease
from ..declared.model import FlowFile, FlowTestSpec, HttpSpec, SqlSpec, TriggerSpec
from ..declared.reading import ReadFlow, called_flows, read_flow, walk
from ..declared.releases import FlowProof, TestProof, content_hash, digest_of_tests, function_digests
from ..errors import Misuse, TwiceproofError
from ..flows.engine.step_identity import AFTER_FAILURE, stem_of
from ..version import __version__
from .prover import Prover, Shown
from .report import ProofReport
from .target import ProofTarget
from .worlds.derived import DerivedWorld
from .worlds.http import matches
from .worlds.world import Worlds

__all__ = ["FlowTestResult", "TestedFile", "flow_proof", "prove_flow_tests", "read_tested"]


URL = "https://flows.test"  # where callbacks would reach the flow
GOOD_REPEATS = ("twice", "at-once", "later")
HARMLESS = ("GET", "HEAD")


class FlowTestResult(Struct, frozen=True):
    """The result of one test. `error` says why it could not be run."""

    test: str
    report: ProofReport | None = None
    unobserved: tuple[str, ...] = ()
    unmet: tuple[str, ...] = ()
    worlds: tuple[str, ...] = ()
    ignored: bool = False  # its event starts nothing, as expected
    error: str = ""

    @property
    def safe(self) -> bool:
        return self.ignored or (self.report is not None and self.report.good)

    @property
    def good(self) -> bool:
        return self.safe and not (self.unmet or self.unobserved or self.error)

    def proof(self) -> TestProof:
        """Return it as evidence."""
        if self.report is None:
            unmet = (*self.unmet, *filter(None, [self.error]))
            return TestProof(self.test, 1, int(self.ignored), self.safe, (), unmet, self.ignored)
        planned, completed = self.report.planned, len(self.report.verdicts)
        return TestProof(self.test, planned, completed, self.safe, self.unobserved, self.unmet)


class TestedFile(Struct, frozen=True):
    """A file, and the files of the flows that it calls, as they are before the tests are run: what the results are
    evidence for. Whoever changes a file meanwhile has proved nothing about the change.
    """

    __test__ = False  # tells pytest that this is not a test class

    reads: tuple[ReadFlow, ...]  # the file itself is the first
    contents: dict[str, str]  # by the flow's name
    functions: dict[str, str]


def read_tested(file: Path) -> TestedFile:
    """Read a file with the flows that it calls, whose files are looked for beside it."""
    read = read_flow(text_of_file(file))
    reads = (read, *_called(read, file.parent, {_sound(read).flow}))
    contents = {_sound(one).flow: content_hash(_sound(one)) for one in reads}
    functions = {name: digest for one in reads for name, digest in function_digests(one).items()}
    return TestedFile(reads, contents, functions)


def flow_proof(
    tested: TestedFile, results: Sequence[FlowTestResult], *, tenant: str, depth: int, by: str, host: str
) -> FlowProof:
    """Return evidence for a file's content, from the results of all of its tests."""
    read = tested.reads[0]
    name = _sound(read).flow
    return FlowProof(
        name,
        tenant,
        tested.contents[name],
        digest_of_tests(read),
        tested.functions,
        __version__,
        depth,
        tuple(result.proof() for result in results),
        tuple(dict.fromkeys(world for result in results for world in result.worlds)),
        by,
        host,
        flows={flow: content for flow, content in tested.contents.items() if flow != name},
    )


def _sound(read: ReadFlow) -> FlowFile:
    if read.file is None or read.problems:
        raise Misuse("The file has problems; they are told by: twiceproof flows lint")
    return read.file


def prove_flow_tests(
    tested: TestedFile,
    known: Connections,
    *,
    only: str = "",
    depth: int = 2,
    store: str = "memory",
    shown: Callable[[str], Shown] = lambda test: lambda done, planned, name: None,
) -> Iterator[FlowTestResult]:
    """Prove the scenarios of a file, one by one.

    Args:
        tested: The flow's file, with those of the flows that it calls.
        known: Its connections. Only their kinds are used: no address is reached, and no secret is read.
        only: The name of one test.
        depth: Kills per scenario: 1, or 2 with a second kill in the recovery.
        store: Where the ledgers of the scenarios are: "memory", "sqlite", or a URL.
        shown: Makes what is told about the progress of a test.
    """
    file = _sound(tested.reads[0])
    tests = [test for test in file.tests or [] if only in ("", test.name)]
    if only and not tests:
        names = ", ".join(test.name for test in file.tests or [])
        raise Misuse(f"There is no test {only!r} of {file.flow}; there are: {names or 'none'}")
    for test in tests:
        try:
            yield _FlowTest(tested.reads, test, known, depth, store, shown(test.name)).run()
        except TwiceproofError as error:
            yield FlowTestResult(test.name, error=str(error))


def _called(read: ReadFlow, folder: Path, seen: set[str]) -> Iterator[ReadFlow]:
    """The flows that a file calls, from the files beside it."""
    for name in called_flows(read):
        if name not in seen:
            seen.add(name)
            beside = folder / f"{name}{SUFFIX}"
            if not beside.is_file():
                raise Misuse(f"The flow {name} is called, and {beside} is not there; write it, or correct the name.")
            other = read_flow(text_of_file(beside))
            yield other
            yield from _called(other, folder, seen)


class _FlowTest:
    """One test, on stand-ins and ledgers of its own."""

    def __init__(
        self, reads: Sequence[ReadFlow], test: FlowTestSpec, known: Connections, depth: int, store: str, shown: Shown
    ) -> None:
        self._reads = reads
        self._test = test
        self._known = known
        self._depth = depth
        self._store = store
        self._shown = shown
        self._expects = read_expectations(plain(test.expect))

    def run(self) -> FlowTestResult:
        with tempfile.TemporaryDirectory(prefix="twiceproof-") as folder, ExitStack() as stack:
            derived = DerivedWorld(self._reads, _plain_test(self._test), self._known, Path(folder))
            worlds = derived.open(stack)
            app = stack.enter_context(App("memory://", url=URL))
            for topic in derived.topics:
                if topic == derived.topics[0]:
                    app.broker("broker", "memory://")
                app.route(topic, to="broker")
            main, *_ = [compile_file(app, read, derived.connections, _sound(read).version) for read in self._reads]
            given = self._given(main)
            if given is None:
                unmet = () if self._expects.ends == "ignored" else ("ends: the event starts nothing",)
                return FlowTestResult(self._test.name, ignored=not unmet, unmet=unmet)
            names = tuple(dict.fromkeys(type(world).__name__ for world in worlds))
            report = self._prove(app, main, given, Worlds(worlds))
            return FlowTestResult(
                self._test.name,
                report,
                tuple(_unobserved(report, self._reads)),
                tuple(_unmet(report, self._expects, derived, self._test.times)),
                names,
            )

    def _given(self, main: CompiledRelease) -> dict[str, Any] | None:
        """The flow's input: as it is written, or made of the event by the first trigger that takes one."""
        if self._test.input is not None:
            return dict(plain(self._test.input))
        file = _sound(self._reads[0])
        if not any(isinstance(one, TriggerSpec) and (one.webhook or one.queue) for one in file.on):
            raise Misuse("A test has an event, and the flow no trigger that takes one; give input instead.")
        make = next(make for (kind, _), make in main.triggers.items() if kind in ("webhook", "queue"))
        made = make(plain(self._test.event))
        return made if made is None or len(file.input) > 1 else {next(iter(file.input)): made}

    def _prove(self, app: App, main: CompiledRelease, given: dict[str, Any], worlds: Worlds) -> ProofReport:
        test = self._test
        target = ProofTarget(
            app,
            main.flow,
            wrapped_flow(main.flow),
            (),
            given,
            tuple(((), dict(plain(event))) for event in test.then),
            dict(plain(test.callbacks)),
            tuple(test.approve),
            tuple(test.reject),
            may_be_idle=True,
            ends=self._expects.ends,
        )
        return Prover(target, worlds, store=self._store, depth=self._depth, shown=self._shown).run()


def _plain_test(test: FlowTestSpec) -> FlowTestSpec:
    return msgspec.structs.replace(test, answers=plain(test.answers), rows=plain(test.rows))


# -- what was expected ---------------------------------------------------------------------------


def _unobserved(report: ProofReport, reads: Sequence[ReadFlow]) -> Iterator[str]:
    """Steps that acted and changed nothing outside, without those that only read or only write into the ledger."""
    quiet = {step.name for read in reads for step in walk((*read.steps, *read.on_error)) if _is_quiet(step.spec)}
    for name in report.unobserved:
        if stem_of(name).removeprefix(AFTER_FAILURE) not in quiet:
            yield name


def _is_quiet(spec: Any) -> bool:
    if isinstance(spec, HttpSpec):
        return spec.http.partition(" ")[0] in HARMLESS
    return type(spec).__name__ == "KeepSpec" or (isinstance(spec, SqlSpec) and spec.query is not None)


def _unmet(report: ProofReport, expects: FlowTestExpectations, derived: DerivedWorld, times: int) -> Iterator[str]:
    if report.state != expects.ends:
        yield f"ends: {expects.ends} expected, and {report.state} seen"
    if expects.returns is not UNSET:
        returned = msgspec.json.decode(report.result) if report.result else None
        if returned != expects.returns:
            yield f"returns: {_json(expects.returns)} expected, and {_json(returned)} seen"
    wanted = dict(expects.counts)
    if expects.mails is not None:
        wanted["mails"] = expects.mails
    for name, count in wanted.items():
        seen = sum(times for text, times in report.expected.items() if _is_counted(name, text, derived))
        if seen != count:
            yield f"{name}: {count} expected, and {seen} seen"
    answered = times - 1 if _is_answered(report) else 0
    if expects.duplicates is not None and expects.duplicates != answered:
        yield f"duplicates: {expects.duplicates} expected, and {answered} answered"


def _is_answered(report: ProofReport) -> bool:
    """Whether repeated deliveries were answered without an effect."""
    return all(one.good for one in report.verdicts if one.scenario in GOOD_REPEATS)


def _is_counted(name: str, text: str, derived: DerivedWorld) -> bool:
    """Whether something that was seen is what a count of `expect` is about."""
    kind, _, rest = name.partition(" ")
    begins = {
        "mails": ("mail to ",),
        "ssh": (f"ssh {derived.host(rest)}:",),
        "sql": (f"{rest.partition(' ')[2]}:",),
        "notify": (f"POST {derived.host(rest)}/notice",),
        "message": (f"message to {rest}:", f"message {rest} to "),
        "call": (f"{name}(",),
    }
    return text.startswith(begins[kind]) if kind in begins else matches(derived.pattern(name), text.partition(" #")[0])


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
