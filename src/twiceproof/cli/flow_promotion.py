"""`twiceproof flows promote|agree|rollback|pause|resume`: who makes which release live."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import structs

from ..errors import Misuse
from ..operations import block
from .flow_releases import FOLDER_HELP, NOTE_HELP, answer, connections_in, flows_in, proving
from .output import NEGATIVE, OK, counted
from .prompts import by_option, login_name
from .target import LedgerTarget, command, opened, read_private, target_options

if TYPE_CHECKING:
    from ..declared.gate import GateCheck
    from ..declared.promotion import Promotion, Releaser
    from ..declared.releases import LiveFlow
    from ..stores.base import Store

__all__ = ["acting_options", "agree", "pause", "promote", "releaser", "resume", "rollback"]


F = TypeVar("F", bound=Callable[..., Any])
ACT_HELP = "Act as the API token in this private file, which needs the scope release. Default: as the store's user."


def acting_options(command: F) -> F:
    """Add the options that say who acts, by name or by token, and why."""
    for option in (
        click.option("--note", metavar="TEXT", default="", help=NOTE_HELP),
        click.option("--token", metavar="@FILE", help=ACT_HELP),
        by_option,
    ):
        command = option(command)
    return command


def releaser(store: Store, target: LedgerTarget, by: str | None, token: str | None) -> Releaser:
    """Return who acts. A token acts under its own name, and only for its own tenant."""
    from ..declared.promotion import Releaser
    from ..server.tokens import Scope, find_token, hash_of, principal_of

    if token is None:
        return Releaser(by or login_name())
    if not token.startswith("@"):
        raise Misuse("--token takes @FILE: every user of this machine can read a token on the command line.")
    found = block(find_token(store, hash_of(read_private(Path(token[1:]), "--token"))))
    if found is None or found.tenant != target.tenant:
        raise Misuse(
            f"The token is not valid for the tenant {target.tenant}; create one: twiceproof tokens create NAME"
        )
    principal = principal_of(found)
    return Releaser(principal.name, principal.may(Scope.RELEASE))


PROMOTE_EPILOG = """\b
Examples:
  twiceproof flows promote welcome --dry-run
  twiceproof flows promote welcome --note "second mail removed"
  twiceproof flows promote shop:sync_order --note "version 7"      a flow in Python: records that it is live
Exit codes: 1 if a condition does not hold; then nothing has changed.
"""


@click.command(epilog=PROMOTE_EPILOG)
@click.argument("name", metavar="NAME|MODULE:FLOW")
@click.option("--release", "which", metavar="HASH", default="", help="Content to promote. Default: the draft.")
@click.option("--new-key", metavar="WHY", default="", help="Reason for a changed key, stored with the change.")
@click.option("--dry-run", is_flag=True, help="Show the conditions, and change nothing.")
@click.option("--flows", "folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False), help=FOLDER_HELP)
@acting_options
@target_options
@click.pass_context
def promote(ctx: click.Context, /, name: str, dry_run: bool, folder: Path | None, **given: Any) -> None:
    """Make a proved release live: new runs begin on it.

    Every condition is listed, and none can be skipped. Runs under way end on the release on which they began.
    """
    from ..declared.promotion import plan_promotion
    from ..declared.promotion import promote as make_live

    target = ctx.ensure_object(LedgerTarget)
    connections = connections_in(target, folder)
    with opened(target) as store:
        who = releaser(store, target, given["by"], given["token"])
        also: list[GateCheck] = []
        content = None
        if ":" in name:
            from .python_releases import recorded

            content, also = recorded(store, target.tenant, name, who.by, keep=who.may and not dry_run)
            name = content.flow
        asked = {
            "content": content,
            "which": given["which"],
            "new_key": given["new_key"],
            "connections": connections,
            "also": also,
        }
        plan = block(plan_promotion(store, target.tenant, name, who, **asked))
        live = None
        if not (dry_run or plan.refused):
            live = block(make_live(store, plan, who, note=given["note"]))
    _show_promotion(target, plan, live, folder)
    ctx.exit(NEGATIVE if plan.refused else OK)


def _proving_move(target: LedgerTarget, plan: Promotion, folder: Path | None) -> list[tuple[str, str]]:
    """The command that makes the missing evidence, if the flow's file is where flows are."""
    file = flows_in(folder) / f"{plan.release.flow}.flow.yaml"
    needed = plan.release.text and any(check.name == "evidence" for check in plan.refused) and file.is_file()
    return [("Prove it", proving(target, file))] if needed else []


def _show_promotion(target: LedgerTarget, plan: Promotion, live: LiveFlow | None, folder: Path | None) -> None:
    from ..declared.views import live_shape, release_shape

    name = plan.release.flow
    lines = []
    for check in plan.checks:
        lines.append(f"{'ok    ' if check.ok else 'refuse'}  {check.name}: {check.found}")
        if not check.ok and check.instead:
            lines.append(f"        Instead: {check.instead}")
    if live is not None:
        lines.append(_began(live))
        moves = [("Go back", command(target, "flows", "rollback", name))]
        moves += [("Resume", command(target, "flows", "resume", name))] if live.paused else []
    elif plan.refused:
        lines.append(f"Not promoted: {counted(len(plan.refused), 'condition')} of {len(plan.checks)} not met.")
        moves = [*_proving_move(target, plan, folder), ("Try again", command(target, "flows", "promote", name))]
    else:
        lines.append("Every condition is met. Nothing has changed.")
        moves = [("Make it live", command(target, "flows", "promote", name))]
    shape = {
        "flow": name,
        "promoted": live is not None,
        "live": live and live_shape(live),
        "release": release_shape(plan.release, plan.proof),
        "remembered_keys": plan.remembered,
        "checks": [structs.asdict(check) for check in plan.checks],
    }
    answer(target, shape, lines, moves)


AGREE_EPILOG = """\b
Examples:
  twiceproof flows agree welcome --note "read it, and its diff"
  twiceproof flows agree welcome --release 3f9c51d2 --token @ann.token
"""


@click.command(epilog=AGREE_EPILOG)
@click.argument("name")
@click.option("--release", "which", metavar="HASH", default="", help="Which content. Default: the draft.")
@acting_options
@target_options
@click.pass_obj
def agree(target: LedgerTarget, name: str, which: str, by: str | None, token: str | None, note: str) -> None:
    """Agree to a draft, so that another person may promote it.

    A file asks for that with `second: true`.
    """
    from ..declared.promotion import agree as keep
    from ..declared.views import release_shape

    with opened(target) as store:
        who = releaser(store, target, by, token)
        release = block(keep(store, target.tenant, name, who, which=which, note=note))
    shape = {"by": who.by, "release": release_shape(release)}
    moves = [("Another person makes it live", command(target, "flows", "promote", name))]
    answer(target, shape, [f"{who.by} agrees to {release.hash[:12]} of {name}."], moves)


ROLLBACK_EPILOG = """\b
Examples:
  twiceproof flows rollback welcome --note "mails the wrong people"
  twiceproof flows rollback welcome --to r6
"""


@click.command(epilog=ROLLBACK_EPILOG)
@click.argument("name")
@click.option("--to", metavar="r6", default="", help="Release to go back to. Default: the one that was live before.")
@acting_options
@target_options
@click.pass_obj
def rollback(target: LedgerTarget, name: str, to: str, by: str | None, token: str | None, note: str) -> None:
    """Make an earlier release live again, at once.

    Runs under way keep their release, and can be cancelled.
    """
    from ..declared.promotion import rollback as go_back
    from ..declared.views import live_shape

    with opened(target) as store:
        who = releaser(store, target, by, token)
        live = block(go_back(store, target.tenant, name, who, to=to, note=note))
    moves = [("List its runs under way", command(target, "runs", "list", "--flow", name))]
    answer(target, structs.asdict(live_shape(live)), [_began(live)], moves)


def _began(live: LiveFlow) -> str:
    if live.paused:
        return f"r{live.number} of {live.flow} is live, and still paused: no run begins or continues."
    return f"r{live.number} of {live.flow} is live: new runs begin on it."


def _paused(target: LedgerTarget, name: str, who: tuple[str | None, str | None], note: str, *, paused: bool) -> None:
    from ..declared.promotion import pause as change
    from ..declared.views import live_shape

    with opened(target) as store:
        acting = releaser(store, target, *who)
        live = block(change(store, target.tenant, name, acting, paused=paused, note=note))
    told = "is paused: events are accepted, and no run begins or continues" if paused else "continues"
    other = "resume" if paused else "pause"
    moves = [(other.capitalize(), command(target, "flows", other, name))]
    answer(target, structs.asdict(live_shape(live)), [f"{name} {told}."], moves)


PAUSE_EPILOG = """\b
Examples:
  twiceproof flows pause welcome --note "the mail server is away"
"""


@click.command(epilog=PAUSE_EPILOG)
@click.argument("name")
@acting_options
@target_options
@click.pass_obj
def pause(target: LedgerTarget, name: str, by: str | None, token: str | None, note: str) -> None:
    """Pause a flow: no run begins or continues.

    Events are still accepted, and their runs wait.
    """
    _paused(target, name, (by, token), note, paused=True)


RESUME_EPILOG = """\b
Examples:
  twiceproof flows resume welcome
"""


@click.command(epilog=RESUME_EPILOG)
@click.argument("name")
@acting_options
@target_options
@click.pass_obj
def resume(target: LedgerTarget, name: str, by: str | None, token: str | None, note: str) -> None:
    """Resume a paused flow: its runs begin and continue."""
    _paused(target, name, (by, token), note, paused=False)
