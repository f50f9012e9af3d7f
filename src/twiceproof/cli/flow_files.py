"""`twiceproof flows lint` and `flows schema`: flows that are written in files."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ..errors import Misuse
from ..version import __version__
from .output import NEGATIVE, OK, counted, show_json, show_text
from .target import LedgerTarget, json_option, tenant_option

if TYPE_CHECKING:
    from ..declared.connections import Connections
    from ..declared.nodes import LintProblem

__all__ = ["connections_beside", "flow_files_of", "lint", "schema"]


LINT_EPILOG = """\b
Examples:
  twiceproof flows lint flows/
  twiceproof flows lint flows/sync_order.flow.yaml --json
  twiceproof flows lint flows/ --tenant acme       with connections.acme.yaml
  twiceproof flows lint flows/ --sarif lint.sarif
Exit codes: 0 no problems (a flow with warnings can run), 1 problems.
"""


@click.command(epilog=LINT_EPILOG)
@click.argument("paths", nargs=-1, required=True, metavar="FILE|DIR...", type=click.Path(path_type=Path, exists=True))
@click.option("--sarif", metavar="FILE", type=click.Path(path_type=Path), help="Also write the problems as SARIF.")
@tenant_option
@json_option
@click.pass_context
def lint(ctx: click.Context, paths: tuple[Path, ...], sarif: Path | None) -> None:
    """Check flow files, and report each problem with its place.

    No step is run; modules whose functions a file calls are imported. Connections are looked up in connections.yaml
    beside a file, those of another tenant in connections.TENANT.yaml; databases on the draft side of one are asked
    whether the tables have the unique indexes that the file needs.
    """
    target = ctx.ensure_object(LedgerTarget)
    files = [*flow_files_of(paths)]
    found = {**_of_connections(files), **{file: _problems(target, file) for file in files}}
    if sarif is not None:
        sarif.write_bytes(msgspec.json.format(msgspec.json.encode(_sarif(found)), indent=2) + b"\n")
    moves = _next(target, found, files)
    if target.json:
        show_json({"files": [str(file) for file in found], "problems": [*_shapes(found)], "next": moves})
    else:
        _show(found, len(files))
    ctx.exit(NEGATIVE if any(map(_is_error, _all(found))) else OK)


def connections_beside(target: LedgerTarget, folder: Path) -> Connections:
    """Return the connections of the command's tenant: those of the files in this directory that are its own."""
    from ..declared.tenants import TenantConnections

    return TenantConnections(folder, target.own_tenant).of(target.tenant)


def _of_connections(files: list[Path]) -> Found:
    """Return the problems of the connections files beside the flows, those of every tenant. Ones without any are left
    out.
    """
    from ..declared.connections import Connections
    from ..declared.tenants import connection_files

    folders = dict.fromkeys(file.parent for file in files)
    known = {file: Connections.read(file).problems for folder in folders for file in connection_files(folder)}
    return {file: [*problems] for file, problems in known.items() if problems}


def _problems(target: LedgerTarget, file: Path) -> list[LintProblem]:
    from ..declared.flow_files import problems_of
    from ..declared.input_schema import text_of_file
    from ..declared.reading import read_flow
    from ..declared.tables import index_problems

    connections = connections_beside(target, file.parent)
    asked = index_problems(read_flow(text_of_file(file)), connections.drafts)
    return sorted([*problems_of(file, connections), *asked], key=lambda problem: (problem.place, problem.rule))


def flow_files_of(paths: tuple[Path, ...]) -> Iterator[Path]:
    from ..declared.flow_files import SUFFIX, find_files

    for path in paths:
        files = find_files(path) if path.is_dir() else [path]
        if not files:
            raise Misuse(f"There is no file *{SUFFIX} in {path}; name the directory of your flows.")
        yield from files


Found = dict[Path, list["LintProblem"]]


def _all(found: Found) -> Iterator[LintProblem]:
    for problems in found.values():
        yield from problems


def _is_error(problem: LintProblem) -> bool:
    return problem.level == "error"


def _next(target: LedgerTarget, found: Found, files: list[Path]) -> list[str]:
    """The command that helps on: the same again after a correction, or the tests."""
    verb = "lint" if any(map(_is_error, _all(found))) else "test"
    tenant = ["--tenant", target.tenant] if target.given_tenant else []
    return [shlex.join(["twiceproof", "flows", verb, *map(str, files), *tenant])] if files else []


def _show(found: Found, count: int) -> None:
    from ..declared.lint import RULES

    for file, problems in found.items():
        for problem in problems:
            show_text(f"{file}:{problem.place.line}:{problem.place.column}: {problem.rule}: {problem.found}")
            if problem.rule in RULES:
                show_text(f"    Why: {RULES[problem.rule]}")
            if problem.instead:
                show_text(f"    Instead: {problem.instead}")
    errors = sum(map(_is_error, _all(found)))
    warnings = len([*_all(found)]) - errors
    told = counted(errors, "problem") if errors else "no problems"
    more = f", {counted(warnings, 'warning')}" if warnings else ""
    show_text(f"Checked {counted(count, 'file')}: {told}{more}.")


def _shapes(found: Found) -> Iterator[dict[str, Any]]:
    from ..declared.lint import RULES

    for file, problems in found.items():
        for one in problems:
            place = {"line": one.place.line, "column": one.place.column}
            said = {"found": one.found, "why": RULES.get(one.rule, ""), "instead": one.instead}
            yield {"file": str(file), **place, "level": one.level, "rule": one.rule, **said}


def _sarif(found: Found) -> dict[str, Any]:
    """SARIF 2.1.0, as code hosts show it beside the lines."""
    results = [
        {
            "ruleId": one["rule"],
            "level": one["level"],
            "message": {"text": f"{one['found']}. Instead: {one['instead']}" if one["instead"] else one["found"]},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": Path(one["file"]).as_posix()},
                        "region": {"startLine": one["line"], "startColumn": one["column"]},
                    }
                }
            ],
        }
        for one in _shapes(found)
    ]
    driver = {"name": "twiceproof", "version": __version__, "rules": _rules(results)}
    return {"version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _rules(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from ..declared.lint import RULES

    names = sorted({result["ruleId"] for result in results})
    return [{"id": name, "fullDescription": {"text": RULES.get(name, name)}} for name in names]


SCHEMA_EPILOG = """\b
Examples:
  twiceproof flows schema > .twiceproof/flow.schema.json
Name it in the first line of each file, so that editors complete and check it:
  # yaml-language-server: $schema=../.twiceproof/flow.schema.json
"""


@click.command(epilog=SCHEMA_EPILOG)
def schema() -> None:
    """Print the JSON Schema of flow files, for editors."""
    from ..declared.model import schema as make_schema

    show_text(msgspec.json.format(msgspec.json.encode(make_schema()), indent=2).decode())
