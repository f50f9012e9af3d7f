"""`python -m bench`: measures, prints the tables, and writes the figures and a chart."""

from __future__ import annotations

import time
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
from .sections.effects import measure_effects
from .sections.engines import ENGINES, measure_engine
from .sections.flows import measure_flows
from .sections.footprint import measure_footprint
from .sections.forgetting import measure_forgetting
from .sections.middleware import measure_middleware
from .sections.peers import measure_peers
from .sections.reconcile import measure_reconcile
from .sections.recovery import measure_recovery
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
        **{f"webhooks on {name}": partial(_webhooks, site_of[name], plan, progress) for name in LEDGERS},
        "webhooks with slow senders": lambda: measure_slow_senders(sites.sqlite, plan, progress),
        "middleware": lambda: measure_middleware(sites, plan, progress),
        **{f"effects on {name}": partial(_effects, site_of[name], plan, progress) for name in LEDGERS},
        "reconcile": lambda: measure_reconcile(plan, progress),
        "copy": lambda: measure_copying(sites.sqlite, sites.postgres, plan, progress),
        **{f"effects rows on {name}": partial(_rows, site_of[name], plan, progress) for name in LEDGERS},
        "effects rows on mariadb": lambda: measure_rows_on_mariadb(plan, progress),
        "import": lambda: measure_footprint(plan, progress),
    }


def _webhooks(site: Callable[[], Site], plan: Plan, progress: Progress) -> Findings:
    return measure_webhooks(site(), plan, progress)


def _effects(site: Callable[[], Site], plan: Plan, progress: Progress) -> Findings:
    return measure_effects(site(), plan, progress)


def _rows(site: Callable[[], Site], plan: Plan, progress: Progress) -> Findings:
    return measure_rows(site(), plan, progress)


def _measured(name: str, section: Callable[[], Findings]) -> Findings:
    """A server that this machine does not have is said to be missing, and the rest goes on."""
    try:
        return section()
    except (Unavailable, StartFailed) as error:
        return Findings(notes=[f"{name} was left out: {error}"])
    except ImportError as error:
        return Findings(notes=[f"{name} was left out: {error}; run: pip install --editable '.[all,bench]'"])


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
