"""Canaries: secrets put into every input must be nowhere in the database, its log, our logs and the command line."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.unit.inbound.post import Post, signature
from twiceproof import App, env
from twiceproof.cli.main import cli

FIELD, HEADER, QUERY, SECRET, OLDER = (
    f"canary-{name}-7f3a9" for name in ("field", "header", "query", "secret", "older")
)
CANARIES = (FIELD, HEADER, QUERY, SECRET, OLDER)


class Shop:
    """An app with a webhook on SQLite, and everything that anybody could read afterwards."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/shop.db"
        self.app = App(self.url)
        options = {"redact": ("card.number", "lines.card"), **options}

        @self.app.flow(key="order:{order[id]}")
        def sync(order: dict[str, Any]) -> Any:
            logging.getLogger("shop").info("order %s", order)
            if order["id"] == "bad":
                raise ValueError(f"cannot take {order}")
            return order

        self.app.webhook(Post(), secret=env("SHOP_SECRET", "SHOP_SECRET_OLD"), start=sync, **options)

    def deliver(self, content: Any) -> int:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        headers = [("X-Sign", signature(body, SECRET)), ("Authorization", f"Bearer {HEADER}"), ("Cookie", HEADER)]
        return self.app.receive("post", body, headers, url=f"https://x.io/hooks/post?code={QUERY}").status

    def files(self) -> bytes:
        return b"".join(path.read_bytes() for path in sorted(self.folder.iterdir()) if path.is_file())

    def shown(self) -> str:
        """What the command line says, in both of its voices."""
        said = []
        runs = [run.run for run in self.app.runs()]
        for words in (
            ["claims", "list", "--state", "all"],
            ["runs", "list", "--state", "all"],
            ["review", "list"],
            ["doctor"],
            ["duplicates"],
            *(["runs", "show", run] for run in runs),
            ["claims", "show", "hook.post", "one"],
        ):
            for json_ in ([], ["--json"]):
                said.append(CliRunner().invoke(cli, ["--store", self.url, *words, *json_]).output)
        return "\n".join(said)


def order(name: str) -> dict[str, Any]:
    return {"id": name, "card": {"number": FIELD, "brand": "visa"}, "lines": [{"card": FIELD, "sku": "A1"}]}


def go_through_everything(shop: Shop) -> None:
    """New, again, with another payload, failing, unreadable, without an id, forged."""
    assert shop.deliver(order("one")) == 200
    shop.deliver(order("one"))
    shop.deliver({**order("one"), "total": 9})
    shop.deliver(order("bad"))
    shop.deliver(b'{"card": {"number": "' + FIELD.encode() + b'"}, ')
    shop.deliver({"card": {"number": FIELD}})
    shop.app.receive("post", json.dumps(order("two")).encode(), [("X-Sign", HEADER)])
    shop.app.worker().run(until_idle=True)
    shop.app.tally.flush()


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_SECRET", SECRET)
    monkeypatch.setenv("SHOP_SECRET_OLD", OLDER)


def test_no_canary_is_found_anywhere(tmp_path: Path, caplog: Any, capfd: Any) -> None:
    shop = Shop(tmp_path)
    with caplog.at_level(logging.DEBUG):
        go_through_everything(shop)
        everything = {"files": shop.files().decode(errors="replace"), "cli": shop.shown(), "log": caplog.text}
        shop.app.close()
    everything["files after"] = shop.files().decode(errors="replace")
    everything["repr"] = repr([shop.app.hooks, shop.app.settings, vars(shop.app)])
    everything["out"], everything["err"] = capfd.readouterr()
    assert "visa" in everything["files"]
    assert "[redacted]" in everything["cli"]
    assert "order" in everything["log"]
    found = [(canary, place) for place, text in everything.items() for canary in CANARIES if canary in text]
    assert found == []


def test_its_twin_without_redaction_finds_the_field(tmp_path: Path) -> None:
    shop = Shop(tmp_path, redact=())
    go_through_everything(shop)
    assert FIELD.encode() in shop.files()
    assert FIELD in shop.shown()
    assert all(canary.encode() not in shop.files() for canary in (HEADER, QUERY, SECRET, OLDER))
    shop.app.close()


def test_what_is_redacted_cannot_be_guessed_from_a_fingerprint(tmp_path: Path) -> None:
    """The rest of the payload is in the ledger: a hash over all of it would tell a guess from the truth."""
    shop = Shop(tmp_path)
    assert shop.deliver(order("one")) == 200
    other = order("one")
    other["card"]["number"] = "another"
    body = json.dumps(other).encode()
    answer = shop.app.receive("post", body, [("X-Sign", signature(body, SECRET))])
    assert json.loads(answer.body)["state"] == "duplicate"
    shop.app.close()


CARD = "4242808042426060"  # four digits are found in a ledger by chance


@pytest.mark.parametrize("shape", [{"card": "NUMBER"}, {"card.number": "NUMBER"}, {"lines": ["NUMBER"]}])
def test_however_a_declared_field_is_written_its_fingerprint_tells_nothing_of_it(tmp_path: Path, shape: Any) -> None:
    shop = Shop(tmp_path)
    first, second, other = (
        json.dumps({"id": "one", "total": total, **shape}).replace("NUMBER", number).encode()
        for number, total in ((CARD, 5), ("1111222233334444", 5), (CARD, 6))
    )
    assert shop.deliver(first) == 200
    assert CARD.encode() not in shop.files()
    answer = shop.app.receive("post", second, [("X-Sign", signature(second, SECRET))])
    assert json.loads(answer.body)["state"] == "duplicate"
    answer = shop.app.receive("post", other, [("X-Sign", signature(other, SECRET))])
    assert json.loads(answer.body)["state"] == "mismatch"
    shop.app.close()


def test_repeats_at_a_webhook_are_counted_by_its_name(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    for _ in range(3):
        shop.deliver(order("one"))
    (row,) = shop.app.duplicates(source="post")
    assert (row.operation, row.key, row.count) == ("sync", "one", 2)
    shop.app.close()
