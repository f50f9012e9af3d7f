"""The table of providers, from the data that effects use."""

from __future__ import annotations

from twiceproof.effects.providers import Provider, providers

from .table import code, table

__all__ = ["provider_notes", "provider_table"]


def provider_table(_: str) -> list[str]:
    head = ("name", "provider", "where the key goes", "remembered", "a repeat gets", "another body", "class", "checked")
    return table(head, [_row(row) for row in providers().values()])


def _row(row: Provider) -> tuple[str, ...]:
    return (
        code(row.id),
        f"[{row.title}]({row.link})",
        _place(row),
        _window(row),
        row.replays or "–",
        row.other_body or "–",
        f"**{row.kind}**" if row.verified else "never (unverified)",
        f"{row.checked:%Y-%m}",
    )


def _place(row: Provider) -> str:
    if row.place == "none":
        return f"– (see `{row.block}`)" if row.block else "–"
    where = {"header": "", "body": "body ", "query": "query ", "client": ""}[row.place]
    limits = [] if row.form == "plain" else [row.form]
    return f"{where}{code(row.field)}" + (f" ({', '.join(limits)})" if limits else "")


def _window(row: Provider) -> str:
    return f"{row.window}, our choice" if row.window and row.window_by == "ours" else row.window or "–"


def provider_notes(_: str) -> list[str]:
    return [f"- {code(row.id)}: {row.note}" for row in providers().values() if row.note]
