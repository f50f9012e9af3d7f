"""`twiceproof flows push|releases|show|diff`: drafts and releases, and how they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import structs

from ..errors import Misuse
from ..operations import block
from ..safe_text import store_words
from .flow_files import connections_beside
from .output import counted, moment, show_json, show_table, show_text
from .prompts import by_option, login_name
from .target import LedgerTarget, command, opened, target_options

if TYPE_CHECKING:
    from ..declared.connections import Connections
    from ..declared.views import FlowReleases, LiveShape, ProofShape, ReleaseShape

__all__ = [
    "FOLDER_HELP",
    "NOTE_HELP",
    "answer",
    "connections_in",
    "diff",
    "flows_in",
    "proving",
    "push",
    "releases",
    "show",
]


F = TypeVar("F", bound=Callable[..., Any])
NOTE_HELP = "Reason, stored with the change."
FOLDER_HELP = (
    "Directory with connections.yaml, or connections.TENANT.yaml for another tenant. Default: flows, if it exists, "
    "otherwise the current directory."
)


def connections_in(target: LedgerTarget, folder: Path | None) -> Connections:
    """Return the connections of the command's tenant."""
    from .load import find_modules_here  # a late import: it brings the app

    find_modules_here()  # with the functions that files call
    return connections_beside(target, flows_in(folder))


def flows_in(folder: Path | None) -> Path:
    """The directory of the flows: as given, otherwise `flows`, otherwise this one."""
    return folder or (Path("flows") if Path("flows").is_dir() else Path())


def answer(target: LedgerTarget, shape: dict[str, Any], lines: Sequence[str], moves: Sequence[tuple[str, str]]) -> None:
    """Print what was done, and the possible next commands."""
    if target.json:
        show_json({**shape, "next": [move for _, move in moves]})
        return
    for line in lines:
        show_text(line)
    for why, move in moves:
        show_text(f"{why}: {move}")


# -- drafts --------------------------------------------------------------------------------------


PUSH_EPILOG = """\b
Examples:
  twiceproof flows push flows/welcome.flow.yaml
  twiceproof flows push flows/welcome.flow.yaml --note "second mail removed" --json
"""


@click.command(epilog=PUSH_EPILOG)
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--note", metavar="TEXT", default="", help=NOTE_HELP)
@by_option
@target_options
@click.pass_obj
def push(target: LedgerTarget, file: Path, note: str, by: str | None) -> None:
    """Store a flow file as the draft of its flow.

    The live release does not change. Pushing the same content again changes nothing: comments, spacing and the order of
    fields do not count.
    """
    from ..declared.input_schema import text_of_file
    from ..declared.releases import live_of
    from ..declared.releases import push as keep
    from ..declared.views import live_shape, release_shape
    from .load import find_modules_here

    find_modules_here()
    with opened(target, create=True) as store:
        release, wrote = block(keep(store, target.tenant, text_of_file(file), by=by or login_name(), note=note))
        live = block(live_of(store, target.tenant, release.flow))
    shape = {"changed": wrote, "draft": release_shape(release), "live": live and live_shape(live)}
    said = f"{'Stored' if wrote else 'Nothing changed:'} the draft of {release.flow}: {release.hash[:12]}"
    told = "nothing is live" if live is None else f"r{live.number} stays live"
    moves = [
        ("Prove it", proving(target, file)),
        ("Compare it with the live release", command(target, "flows", "diff", release.flow)),
        ("Make it live", command(target, "flows", "promote", release.flow)),
    ]
    answer(target, shape, [f"{said}; {told}."], moves if live is not None else [moves[0], moves[2]])


def proving(target: LedgerTarget, file: Path) -> str:
    """The command names the store: without it, `flows test` keeps no evidence."""
    own = [] if target.given_store else [*store_words(target.url)]
    return command(target, "flows", "test", str(file), *own)


# -- looking -------------------------------------------------------------------------------------


RELEASES_HEAD = ("RELEASE", "CONTENT", "LIVE", "PUSHED BY", "AT", "PROVED", "NOTE")
CHANGES_HEAD = ("AT", "WHAT", "RELEASE", "BY", "EVIDENCE", "NOTE")


RELEASES_EPILOG = """\b
Examples:
  twiceproof flows releases welcome
  twiceproof --json flows releases welcome
"""


@click.command(epilog=RELEASES_EPILOG)
@click.argument("name")
@target_options
@click.pass_obj
def releases(target: LedgerTarget, name: str) -> None:
    """List the releases of a flow, their evidence, and its draft.

    Also every change of what was live: who changed it, when, and why.
    """
    from ..declared.views import look_at_releases

    with opened(target) as store:
        found = block(look_at_releases(store, target.tenant, name))
        now = store.read(_nowhere()).block().now
    moves = _moves(target, found)
    if target.json:
        show_json({**structs.asdict(found), "next": [move for _, move in moves]})
        return
    if not found.releases:
        show_text(f"{name} has no release and no draft. Push one: {command(target, 'flows', 'push', 'FILE')}")
        return
    show_table(RELEASES_HEAD, [_row(one, found.live, now) for one in found.releases])
    if found.changes:
        show_text()
        rows = [
            (moment(one.at), one.what, f"r{one.number}", one.by, one.evidence or "-", one.note) for one in found.changes
        ]
        show_table(CHANGES_HEAD, rows)
    for why, move in moves:
        show_text(f"{why}: {move}")


def _moves(target: LedgerTarget, found: FlowReleases) -> list[tuple[str, str]]:
    """What can be done next: with a draft that is not live, and with what is live."""
    live = None if found.live is None else found.live.hash
    if not found.releases:
        return [("Push a draft", command(target, "flows", "push", "FILE"))]
    if found.draft is None or found.draft == live:
        return [("Go back", command(target, "flows", "rollback", found.flow))] if len(found.releases) > 1 else []
    moves = [("Compare the draft with what is live", command(target, "flows", "diff", found.flow))] if live else []
    return [*moves, ("Make the draft live", command(target, "flows", "promote", found.flow, "--dry-run"))]


def _nowhere() -> Any:
    from .doctor import NOWHERE

    return NOWHERE


def _row(one: ReleaseShape, live: LiveShape | None, now: float) -> tuple[str, ...]:
    is_live = live is not None and live.hash == one.hash
    word = ("paused" if live is not None and live.paused else "live") if is_live else ""
    return one.release or "draft", one.hash[:12], word, one.by, moment(one.at), _proved(one.proof, now), one.note


def _proved(proof: ProofShape | None, now: float) -> str:
    if proof is None:
        return "-"
    return f"{proof.scenarios} scenarios, {counted(len(proof.results), 'test')}, {int((now - proof.at) / 86_400)} d ago"


SHOW_EPILOG = """\b
Examples:
  twiceproof flows show welcome
  twiceproof flows show welcome --release r7
"""


@click.command(epilog=SHOW_EPILOG)
@click.argument("name")
@click.option("--release", "which", metavar="r7|HASH", default="", help="Release to print. Default: the live one.")
@target_options
@click.pass_obj
def show(target: LedgerTarget, name: str, which: str) -> None:
    """Print the file of a release, as it was pushed."""
    from ..declared.releases import proof_of, release_of
    from ..declared.views import release_shape

    with opened(target) as store:
        release = block(release_of(store, target.tenant, name, which))
        proof = block(proof_of(store, target.tenant, name, release.hash))
    if target.json:
        follow = command(target, "flows", "releases", name)
        show_json({**structs.asdict(release_shape(release, proof)), "text": release.text, "next": [follow]})
    elif release.text:
        show_text(release.text.rstrip("\n"))
    else:
        show_text(f"{name} is written in Python: version {release.version}, key {release.key}")


DIFF_EPILOG = """\b
Examples:
  twiceproof flows diff welcome
  twiceproof flows diff welcome --from r6 --to r7
"""


@click.command(epilog=DIFF_EPILOG)
@click.argument("name")
@click.option("--from", "old", metavar="r7|HASH", default="", help="Release to compare with. Default: the live one.")
@click.option("--to", "new", metavar="r8|HASH", default="", help="Release to compare. Default: the draft.")
@target_options
@click.pass_obj
def diff(target: LedgerTarget, name: str, old: str, new: str) -> None:
    """Compare two releases: key, triggers, steps, repeats, effects.

    Warns if late duplicates of finished work would no longer be recognised, and counts the remembered keys.
    """
    from ..declared.diff import differences
    from ..declared.promotion import counted_keys, remembered_keys
    from ..declared.reading import read_flow
    from ..declared.releases import draft_of, release_of

    with opened(target) as store:
        before = block(release_of(store, target.tenant, name, old))
        after = block(release_of(store, target.tenant, name, new) if new else draft_of(store, target.tenant, name))
        if after is None or not (before.text and after.text):
            raise Misuse(f"{name} has no two releases to compare; push one: twiceproof flows push FILE")
        found = differences(read_flow(before.text), read_flow(after.text))
        late = any(one.late for one in found)
        count = block(remembered_keys(store, target.tenant, name)) if late else 0
    shape = {"flow": name, "from": before.name, "to": after.name, "late_duplicates": late, "remembered_keys": count}
    lines = [one.line() + (f"\n    {one.late}" if one.late else "") for one in found] or ["Nothing changes."]
    if late:
        lines.append(f"{counted_keys(count)} of {name} are remembered.")
    told = {**shape, "changes": [structs.asdict(one) for one in found]}
    answer(target, told, lines, [("Make it live", command(target, "flows", "promote", name))])
