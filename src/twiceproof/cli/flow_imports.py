"""`twiceproof flows import` and `flows suggest`: workflows of n8n as flow files, and what an OpenAPI document says of
how their steps may be repeated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import Misuse
from ..safe_text import suggested_command
from .output import NEGATIVE, OK, counted, show_json, show_text
from .prove import read_json
from .target import LedgerTarget, json_option

if TYPE_CHECKING:
    from ..declared.imports import ImportedFlow

__all__ = ["import_", "suggest"]


IMPORT_EPILOG = """\b
Examples:
  twiceproof flows import n8n workflow.json
  twiceproof flows import n8n workflow.json --to flows --name welcome
An existing file is never overwritten.
"""


@click.command("import", epilog=IMPORT_EPILOG)
@click.argument("kind", type=click.Choice(["n8n"]))
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--to", "folder", type=click.Path(path_type=Path), default=Path("flows"), help="Directory of the new file."
)
@click.option("--name", metavar="NAME", default="", help="Name of the flow. Default: that of the workflow.")
@json_option
@click.pass_obj
def import_(target: LedgerTarget, kind: str, file: Path, folder: Path, name: str) -> None:
    """Translate a workflow of n8n into a flow file.

    Every node with an effect becomes a step with repeat: never. The output lists the steps to declare, and what was not
    translated.
    """
    from ..declared.imports import import_n8n
    from ..declared.tenants import CONNECTIONS

    made = import_n8n(read_json(str(file), "flows import"), name)
    path = folder / f"{made.name}.flow.yaml"
    _write(path, made)
    _connect(folder / CONNECTIONS, made)
    move = suggested_command("flows", "lint", str(path))
    if target.json:
        told: dict[str, Any] = {"file": str(path), "to_declare": made.to_declare, "untranslated": made.untranslated}
        show_json({**told, "next": [move]})
        return
    show_text(f"Wrote {path}.")
    if made.to_declare:
        show_text(f"{counted(len(made.to_declare), 'step')} to declare: {', '.join(made.to_declare)}")
    for line in made.untranslated:
        show_text(f"Not translated: {line}")
    show_text(f"Next: {move}")


def _write(path: Path, made: ImportedFlow) -> None:
    try:
        import yaml
    except ImportError:
        raise Misuse("Flow files need PyYAML; run: pip install 'twiceproof[files]'") from None
    if path.exists():
        raise Misuse(f"{path} exists already; use another --name or --to, or move it away.")
    path.parent.mkdir(parents=True, exist_ok=True)
    head = "# yaml-language-server: $schema=../.twiceproof/flow.schema.json\n"
    path.write_text(head + yaml.safe_dump(made.data, sort_keys=False, allow_unicode=True, width=120), "utf-8")


def _connect(path: Path, made: ImportedFlow) -> None:
    """Write the connections, if there is no such file yet; otherwise they are the maker's."""
    import yaml

    if made.connections and not path.exists():
        path.write_text(yaml.safe_dump(made.connections, sort_keys=False, width=120), "utf-8")


SUGGEST_EPILOG = """\b
Examples:
  twiceproof flows suggest flows/bill.flow.yaml --openapi stripe.json
Exit codes: 1 if the document says nothing about the steps.
"""


@click.command(epilog=SUGGEST_EPILOG)
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--openapi", "spec", required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@json_option
@click.pass_context
def suggest(ctx: click.Context, file: Path, spec: Path) -> None:
    """Suggest repeats for a flow file from an OpenAPI document."""
    from ..declared.input_schema import text_of_file
    from ..declared.reading import read_flow
    from ..declared.suggestions import suggest_repeats

    found = suggest_repeats(read_flow(text_of_file(file)), _document(spec))
    if ctx.ensure_object(LedgerTarget).json:
        show_json({"file": str(file), "suggestions": found, "next": [suggested_command("flows", "lint", str(file))]})
    else:
        for one in found:
            show_text(f"{file}:{one.line}: {one.step}: repeat: {_yaml(one.repeat)}")
            show_text(f"    Why: {one.why}")
        if not found:
            show_text("The document says nothing about the steps of this file.")
    ctx.exit(OK if found else NEGATIVE)


def _document(spec: Path) -> Any:
    if spec.suffix == ".json":
        return read_json(str(spec), "--openapi")
    import yaml

    try:
        return yaml.safe_load(spec.read_text("utf-8"))
    except yaml.YAMLError as error:
        raise Misuse(f"{spec} cannot be read ({error.__class__.__name__}); give JSON or YAML.") from None


def _yaml(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "{" + ", ".join(f'{name}: "{text}"' for name, text in value.items()) + "}"
