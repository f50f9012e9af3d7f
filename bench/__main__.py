"""`python -m bench`: measures, prints the tables, and writes the figures and a chart."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click
from msgspec import structs
from tests.servers import StartFailed, Unavailable

from .chart import write_chart
from .findings import Findings
from .machine import facts
from .plan import FULL, QUICK, SECTIONS, Plan
from .progress import Progress
from .report import Report
from .sections.copying import measure_copying
from .sections.dashboard import measure_browsers, measure_pages
from .sections.effects import measure_effects
from .sections.engines import ENGINES, measure_engine
from .sections.flow_files import measure_flow_files, measure_lint
from .sections.flows import measure_flows, measure_flows_beside
from .sections.footprint import measure_footprint
from .sections.forgetting import measure_forgetting
from .sections.message_peers import measure_message_peers
from .sections.messages import measure_brokers, measure_messages
from .sections.middleware import measure_middleware
from .sections.passed import measure_backlog, measure_passed
from .sections.peers import measure_peers
from .sections.reconcile import measure_reconcile, measure_tables
from .sections.recovery import measure_recovery
from .sections.row_stores import ROW_STORES, measure_row_store
from .sections.rows import measure_rows, measure_rows_on_mariadb
from .sections.scale import measure_scale
from .sections.store import measure_store
from .sections.waiting import measure_waiting
from .sections.webhooks import measure_slow_senders, measure_webhooks
from .sites import Site, Sites
from .table import show

RESULTS = Path(__file__).parent / "results"
STORES = ("sqlite", "postgres", "valkey")
LEDGERS = ("sqlite", "postgres")  # stores that flows are measured on
FAILED = "failed, and has no figures:"


@click.command()
@click.option("--quick", is_flag=True, help="Tiny: shows that everything runs. Its figures mean nothing.")
@click.option("--only", default=",".join(SECTIONS), help=f"Some of {','.join(SECTIONS)}, joined by commas.")
@click.option("--rounds", type=click.IntRange(1), help="More rounds, steadier medians.")
@click.option(
    "--json",
    "path",
    type=click.Path(path_type=Path),
    help="Where the figures go, and the chart beside them; bench/results/latest.json if left out, "
    "or a file named for the sections if only some are measured.",
)
def main(quick: bool, only: str, rounds: int | None, path: Path | None) -> None:
    """Measure twiceproof beside the raw stores and its peers, in one run. Only the ratios mean something elsewhere."""
    plan = QUICK if quick else FULL
    if rounds:
        plan = structs.replace(plan, rounds=rounds, scale_rounds=rounds)
    chosen = _chosen(only)
    path = path or RESULTS / f"{_file_name(chosen)}.json"
    report = measure(plan, chosen, Progress())
    show(report.machine, report.findings)
    report.write(path)
    write_chart(path.with_suffix(".svg"), report.findings.lines, _subtitle(report))
    print(f"Written: {path} and {path.with_suffix('.svg')}, after {report.seconds:.0f} s")
    failed = [note for note in report.findings.notes if FAILED in note]
    if failed:
        raise SystemExit("\n".join(["Sections that failed:", *failed]))


def measure(plan: Plan, chosen: list[str], progress: Progress) -> Report:
    began, machine, findings = time.monotonic(), facts(), Findings()
    with ExitStack() as stack:
        for name, section in _sections(Sites(stack), plan, progress).items():
            if name.partition(" ")[0] in chosen:
                findings.add(_measured(name, section))
    taken_at = datetime.now(UTC).isoformat(timespec="seconds")
    return Report(plan.name, plan.rounds, taken_at, time.monotonic() - began, machine, findings)


def _sections(sites: Sites, plan: Plan, progress: Progress) -> dict[str, Callable[[], Findings]]:
    site_of = sites.by_name()
    return {
        **{name: lambda name=name: measure_store(site_of[name](), plan, progress) for name in STORES},  # type: ignore[misc]
        "peers": lambda: measure_peers(sites.valkey, "always", plan, progress),
        "peers without waiting for the disk": lambda: measure_peers(sites.lax_valkey, "everysec", plan, progress),
        **{f"scale on {name}": lambda name=name: measure_scale(site_of[name](), plan, progress) for name in STORES},  # type: ignore[misc]
        "scale on mariadb": lambda: measure_scale(sites.mariadb, plan, progress),
        "flows on mariadb": lambda: measure_flows_beside(sites.mariadb, sites.postgres, plan, progress),
        **{f"flows on {name}": lambda name=name: measure_flows(site_of[name](), plan, progress) for name in LEDGERS},  # type: ignore[misc]
        **{
            f"flows {what} on {name}": lambda name=name, measure=measure: measure(site_of[name](), plan, progress)  # type: ignore[misc]
            for what, measure in (("interrupted", measure_recovery), ("waiting", measure_waiting))
            for name in LEDGERS
        },
        **{
            f"flows forgotten on {name}": lambda name=name: measure_forgetting(site_of[name](), plan, progress)  # type: ignore[misc]
            for name in STORES
        },
        **{
            f"flows beside {kind.name}": lambda kind=kind: measure_engine(  # type: ignore[misc]
                kind, [site_of[name]() for name in LEDGERS], plan, progress
            )
            for kind in ENGINES
        },
        **{f"files on {name}": partial(_files, site_of[name], plan, progress) for name in LEDGERS},
        "files lint": lambda: measure_lint(plan, progress),
        **{f"webhooks on {name}": partial(_webhooks, site_of[name], plan, progress) for name in LEDGERS},
        "webhooks with slow senders": lambda: measure_slow_senders(sites.sqlite, plan, progress),
        **{f"dashboard on {name}": partial(_pages, site_of[name], plan, progress) for name in LEDGERS},
        **{f"dashboard and webhooks on {name}": partial(_browsers, site_of[name], plan, progress) for name in LEDGERS},
        "middleware": lambda: measure_middleware(sites, plan, progress),
        **{f"effects on {name}": partial(_effects, site_of[name], plan, progress) for name in LEDGERS},
        **{f"messages on {name}": partial(_messages, site_of[name], plan, progress) for name in LEDGERS},
        **{f"messages and RabbitMQ on {name}": partial(_brokers, site_of[name], plan, progress) for name in LEDGERS},
        **{f"messages beside others on {name}": partial(_peers, site_of[name], plan, progress) for name in LEDGERS},
        "messages passed": lambda: measure_passed(sites.postgres, plan, progress),
        **{f"messages behind others on {name}": partial(_backlog, site_of[name], plan, progress) for name in LEDGERS},
        "reconcile": lambda: measure_reconcile(plan, progress),
        "reconcile tables": lambda: measure_tables(sites.postgres.fresh(), plan, progress),
        "copy": lambda: measure_copying(sites.sqlite, sites.postgres, plan, progress),
        **{f"effects rows on {name}": partial(_rows, site_of[name], plan, progress) for name in LEDGERS},
        "effects rows on mariadb": lambda: measure_rows_on_mariadb(plan, progress),
        **{f"rows on {name}": partial(measure_row_store, name, plan, progress) for name in ROW_STORES},
        "import": lambda: measure_footprint(plan, progress),
    }


def _webhooks(site: Callable[[], Site], plan: Plan, progress: Progress) -> Findings:
    return measure_webhooks(site(), plan, progress)


def _files(site: Callable[[], Site], plan: Plan, progress: Progress) -> Findings:
    return measure_flow_files(site(), plan, progress)


def _pages(site: Callable[[], Site], plan: Plan, progress: Progress) -> Findings:
    there = site()
    return measure_pages(there, plan.shown[there.name], progress)


def _browsers(site: Callable[[], Site], plan: Plan, progress: Progress) -> Findings:
    return measure_browsers(site(), plan, progress)


def _effects(site: Callable[[], Site], plan: Plan, progress: Progress) -> Findings:
    return measure_effects(site(), plan, progress)


def _messages(site: Callable[[], Site], plan: Plan, progress: Progress) -> Findings:
    return measure_messages(site(), plan, progress)


def _backlog(site: Callable[[], Site], plan: Plan, progress: Progress) -> Findings:
    return measure_backlog(site(), plan, progress)


def _brokers(site: Callable[[], Site], plan: Plan, progress: Progress) -> Findings:
    return measure_brokers(site(), plan, progress)


def _peers(site: Callable[[], Site], plan: Plan, progress: Progress) -> Findings:
    return measure_message_peers(site(), plan, progress)


def _rows(site: Callable[[], Site], plan: Plan, progress: Progress) -> Findings:
    return measure_rows(site(), plan, progress)


def _measured(name: str, section: Callable[[], Findings]) -> Findings:
    """Measure a section. One that cannot run here, or fails, leaves a note: the rest is measured all the same."""
    try:
        return section()
    except (Unavailable, StartFailed) as error:
        return Findings(notes=[f"{name} was left out: {error}"])
    except ImportError as error:
        return Findings(notes=[f"{name} was left out: {error}; run: pip install --editable '.[all,bench]'"])
    except Exception as error:  # noqa: BLE001 - half an hour of other sections must not be lost with it
        traceback.print_exc()
        return Findings(notes=[f"{name} {FAILED} {type(error).__name__}: {str(error)[:300]}"])


def _chosen(only: str) -> list[str]:
    chosen = [name.strip() for name in only.split(",") if name.strip()]
    unknown = sorted(set(chosen) - set(SECTIONS))
    if unknown or not chosen:
        raise click.BadParameter(f"{', '.join(unknown) or 'nothing'} is no section; choose from {', '.join(SECTIONS)}.")
    return chosen


def _file_name(chosen: list[str]) -> str:
    """Some sections alone never overwrite the figures of all."""
    return "latest" if set(chosen) == set(SECTIONS) else "-".join(name for name in SECTIONS if name in chosen)


def _subtitle(report: Report) -> str:
    quick = "A quick run, whose figures mean nothing. " if report.plan == "quick" else ""
    return (
        f"{quick}Medians of {report.rounds} interleaved rounds, lowest to highest in brackets; "
        f"{report.machine['cpu']}, {report.machine['file system']}, {report.taken_at[:10]}"
    )


if __name__ == "__main__":
    main(prog_name="python -m bench")
