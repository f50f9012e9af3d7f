"""`twiceproof flows test`: runs the tests of flow files under faults, and stores the evidence that a release needs."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import Misuse
from ..operations import block
from ..safe_text import suggested_command
from .flow_files import connections_beside, flow_files_of
from .flow_promotion import ACT_HELP, releaser
from .output import NEGATIVE, OK, Progress, counted, show_json, show_text
from .prompts import by_option
from .target import LedgerTarget, opened, options_about

if TYPE_CHECKING:
    from ..declared.connections import Connections
    from ..prove.flow_tests import FlowTestResult, TestedFile

__all__ = ["test"]


STORE_HELP = "Store that keeps the evidence for a release. Default: none is kept."
# What to write in a file, for a step that is declared so and should not be.
IN_FILES = {
    "safe": "repeat: {check: GET CONNECTION /path, found: …} if the destination can be asked, {keyed: Idempotency-Key} "
    "if it knows keys, otherwise never (a person is asked)",
    "keyed": "repeat: {check: GET CONNECTION /path, found: …}, or never: the destination does not know the key",
    "check": "a check that finds what the step itself left there, such as {effect_key}",
    "never": "the effect in one step only: something else in the flow does the same",
}
EPILOG = """\b
Examples:
  twiceproof flows test flows/
  twiceproof flows test flows/welcome.flow.yaml --test "a new customer" --depth 1
  twiceproof --store postgresql://db/app flows test flows/welcome.flow.yaml --token @ci.token
  twiceproof flows test flows/ --junit proof.xml --json
Exit codes: 0 every test is safe to repeat and as expected; 1 not.
"""


@click.command(epilog=EPILOG)
@click.argument("paths", nargs=-1, required=True, metavar="FILE|DIR...", type=click.Path(path_type=Path, exists=True))
@click.option("--test", "only", metavar="NAME", default="", help="Run only this test; no evidence is kept.")
@click.option(
    "--depth",
    type=click.IntRange(1, 2),
    default=2,
    show_default=True,
    help="Kills per scenario: 1, or 2 with a second kill in the recovery, which a release needs.",
)
@click.option(
    "--ledger",
    metavar="STORE",
    default="memory",
    show_default=True,
    help="Store for the ledgers of the scenarios: memory, sqlite, or a PostgreSQL or Redis URL.",
)
@click.option("--junit", metavar="FILE", type=click.Path(path_type=Path), help="Write the verdicts as JUnit XML.")
@by_option
@click.option("--token", metavar="@FILE", help=ACT_HELP)
@options_about(STORE_HELP)
@click.pass_context
def test(
    ctx: click.Context,
    paths: tuple[Path, ...],
    only: str,
    depth: int,
    ledger: str,
    junit: Path | None,
    by: str | None,
    token: str | None,
) -> None:
    """Run the tests of flow files under faults, with stand-ins.

    Nothing real is reached and no secret is read: mail servers, hosts, databases, SSH and brokers are replaced by
    stand-ins that follow from the steps of the file. Each test is run twice, eight times at once, killed at every
    point, paused, and with lost answers, and compared with one clean run and with what the test expects.
    """
    from ..prove.flow_tests import read_tested

    target = ctx.ensure_object(LedgerTarget)
    keeps = target.given_store is not None and not only
    proved_by = _proved_by(target, by, token) if keeps else ""
    by_file: dict[Path, list[FlowTestResult]] = {}
    for file in flow_files_of(paths):
        connections = connections_beside(target, file.parent)
        _refuse_unsound(file, connections)
        tested = read_tested(file)
        by_file[file] = [*_results_of(file, tested, connections, only, depth, ledger, quiet=target.json)]
        if not target.json:
            _show(file, by_file[file])
        if keeps and by_file[file]:
            _keep(target, tested, by_file[file], depth, proved_by)
    if junit is not None:
        junit.write_text(_junit(by_file), "utf-8")
    good = all(result.good for results in by_file.values() for result in results) and all(by_file.values())
    if target.json:
        flows = [_shape(file, results) for file, results in by_file.items()]
        show_json({"good": good, "flows": flows, "next": _next(target, by_file, good)})
    else:
        _show_end(target, by_file, good)
    ctx.exit(OK if good else NEGATIVE)


def _refuse_unsound(file: Path, connections: Connections) -> None:
    from ..declared.flow_files import problems_of

    problems = [problem for problem in problems_of(file, connections) if problem.level == "error"]
    if problems:
        one = problems[0]
        told = f"{file}:{one.place.line}:{one.place.column}: {one.rule}: {one.found}"
        raise Misuse(f"{told}. Correct it; for all problems: twiceproof flows lint {file}")


def _results_of(
    file: Path, tested: TestedFile, connections: Connections, only: str, depth: int, ledger: str, *, quiet: bool
) -> Iterator[FlowTestResult]:
    from ..prove.flow_tests import prove_flow_tests

    with Progress(file.name, quiet=quiet) as progress:
        yield from prove_flow_tests(
            tested, connections, only=only, depth=depth, store=ledger, shown=lambda name: progress.show
        )


def _proved_by(target: LedgerTarget, by: str | None, token: str | None) -> str:
    """Return under whose name evidence is kept. Refused before anything is run: a token without the scope
    `release` must not bring evidence on which somebody else then promotes."""
    with opened(target, create=True) as store:
        who = releaser(store, target, by, token)
    who.require("keep evidence for a release")
    return who.by


def _keep(target: LedgerTarget, tested: TestedFile, results: list[FlowTestResult], depth: int, by: str) -> None:
    """Store the evidence, and replace earlier evidence."""
    from ..declared.releases import keep_proof
    from ..prove.flow_tests import flow_proof

    proof = flow_proof(tested, results, tenant=target.tenant, depth=depth, by=by, host=socket.gethostname())
    with opened(target, create=True) as store:
        kept = block(keep_proof(store, proof))
    if not target.json:
        show_text(f"Kept as evidence for {kept.flow} {kept.hash[:12]}.")


# -- what is shown -------------------------------------------------------------------------------


def _show(file: Path, results: list[FlowTestResult]) -> None:
    if not results:
        show_text(f"{file}: no tests; without them nothing is proved.")
    for result in results:
        show_text(f"{'ok' if result.good else 'no':<4}{file.name}: {result.test}: {_summary(result)}")
        for line in _complaints(result):
            show_text(f"    {line}")


def _summary(result: FlowTestResult) -> str:
    if result.report is None:
        return "the event starts nothing, as expected" if result.ignored else "not run"
    effects = ", ".join(f"{count} × {what.partition(' #')[0]}" for what, count in result.report.expected.items())
    return f"{counted(len(result.report.verdicts), 'scenario')}; {effects or 'no effect'}"


def _complaints(result: FlowTestResult) -> Iterator[str]:
    from ..prove.report import bad_rows, wrong_lines

    if result.error:
        yield result.error
    yield from (f"expected otherwise: {unmet}" for unmet in result.unmet)
    yield from (f"not observed: {step} ran, and nothing outside changed" for step in result.unobserved)
    if result.report is not None and not result.report.good:
        yield from (" · ".join(row) for row in bad_rows(result.report, 5))
        yield from wrong_lines(result.report, IN_FILES)
        yield from map(_unanswered, result.report.unanswered)


def _unanswered(asked: str) -> str:
    """A read that found nothing only because the test has no answer to it. `asked`: GET crm.test/customers/c1"""
    method, _, place = asked.partition(" ")
    host, _, path = place.partition("/")
    request = f"{method} {host.removesuffix('.test')} /{path}"
    return (
        f"Not answered: {request}. It found nothing (404). If a step looks there for what it did, give the test "
        f"answers: {{{request}: {{body: …, after: POST …}}}}"
    )


def _show_end(target: LedgerTarget, by_file: dict[Path, list[FlowTestResult]], good: bool) -> None:
    tests = [result for results in by_file.values() for result in results]
    bad = sum(not result.good for result in tests)
    told = "all safe to repeat, and as expected" if good else f"{bad or 'none run'} not as expected"
    show_text(f"Ran {counted(len(tests), 'test')} of {counted(len(by_file), 'file')}: {told}.")
    for command in _next(target, by_file, good):
        show_text(f"Next: {command}")


def _next(target: LedgerTarget, by_file: dict[Path, list[FlowTestResult]], good: bool) -> list[str]:
    if not good:
        first = next(((file, one) for file, results in by_file.items() for one in results if not one.good), None)
        if first is None:
            return []
        words = ["flows", "test", str(first[0]), "--test", first[1].test, "--depth", "1"]
        return [suggested_command(*target.words(), *words)]
    kept = target.given_store is not None
    verbs = [("promote", _name_of(file)) if kept else ("push", str(file)) for file in by_file]
    return [suggested_command(*target.words(), "flows", verb, name) for verb, name in verbs]


def _name_of(file: Path) -> str:
    from ..declared.flow_files import SUFFIX

    return file.name.removesuffix(SUFFIX)


def _shape(file: Path, results: list[FlowTestResult]) -> dict[str, Any]:
    from ..declared.input_schema import text_of_file
    from ..declared.reading import read_flow
    from ..declared.releases import content_hash

    read = read_flow(text_of_file(file))
    content = "" if read.file is None else content_hash(read.file)
    return {"file": str(file), "flow": _name_of(file), "hash": content, "tests": [_test_shape(one) for one in results]}


def _test_shape(result: FlowTestResult) -> dict[str, Any]:
    report = result.report
    shape: dict[str, Any] = {"name": result.test, "good": result.good, "safe": result.safe, "error": result.error}
    shape |= {"unmet": result.unmet, "unobserved": result.unobserved, "worlds": result.worlds}
    if report is None:
        return {**shape, "ignored": result.ignored}
    bad = [{"scenario": one.scenario, "says": one.says, "word": one.word, "extra": one.extra} for one in report.bad]
    return {
        **shape,
        "planned": report.planned,
        "completed": len(report.verdicts),
        "ends": report.state,
        "effects": report.expected,
        "bad": bad,
        "unanswered": report.unanswered,
    }


def _junit(by_file: dict[Path, list[FlowTestResult]]) -> str:
    from xml.etree.ElementTree import Element, SubElement, tostring

    root = Element("testsuites")
    for file, results in by_file.items():
        suite = SubElement(root, "testsuite", name=file.name, tests=str(len(results)))
        suite.set("failures", str(sum(not result.good for result in results)))
        for result in results:
            case = SubElement(suite, "testcase", classname=file.name, name=result.test)
            if not result.good:
                failure = SubElement(case, "failure", message="; ".join(_complaints(result))[:500])
                failure.text = "\n".join(_complaints(result))
    return tostring(root, encoding="unicode")
