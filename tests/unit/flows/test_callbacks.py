"""`app.callback_url`: an unguessable URL that ends one wait of one run, once."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.unit.flows.stage import Died, Stage, Style
from tests.unit.flows.waits import URL, deliver, park, process, token_of, work
from twiceproof import App, Delivered, Misuse, NoSuchWait, Waiting
from twiceproof.claims.retention import sweep
from twiceproof.operations import block


def inviting(
    stage: Stage, app: App, urls: list[str], style: Style | None = None, timeout: str = "7d", **options: Any
) -> Any:
    """A flow that hands out a URL and waits for it."""
    style = style or Style("def")

    def invite(url: str) -> None:
        stage.do("invite")
        urls.append(url)

    step = style.step(app, invite, repeat="safe")

    def steps(order: int) -> Any:
        url = yield app.callback_url("paid")
        yield step(url)
        return (yield app.wait_for("paid", timeout=timeout))

    return style.flow(app, steps, **options)


def test_whoever_calls_the_url_ends_the_wait_once(stage: Stage, style: Style) -> None:
    urls: list[str] = []
    app = process(stage)
    sync = inviting(stage, app, urls, style)
    park(sync)
    assert urls[0].startswith(f"{URL}/v1/callbacks/")
    assert app.deliver(token_of(urls[0]), {"amount": 7}) == Delivered(True, {"amount": 7})
    assert app.deliver(token_of(urls[0]), {"amount": 8}) == Delivered(False, {"amount": 7})
    assert sync(1) == {"amount": 7}


def test_by_url_and_by_key_it_is_the_same_wait(stage: Stage) -> None:
    urls: list[str] = []
    app = process(stage)
    park(inviting(stage, app, urls))
    assert deliver(app, "by key").first
    assert app.deliver(token_of(urls[0]), "by url") == Delivered(False, "by key")


def test_a_replay_hands_out_the_same_url_and_another_run_another(stage: Stage) -> None:
    seen: list[str] = []
    app = process(stage)

    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        seen.append(app.callback_url("paid"))
        assert app.callback_url("paid") == seen[-1]
        assert app.callback_url("shipped") != seen[-1]
        return str(app.wait_for("paid"))

    park(sync, 1)
    deliver(app, "x")
    sync(1)
    park(sync, 2)
    assert seen[0] == seen[1] != seen[2]


def test_an_app_that_has_moved_goes_on_with_the_url_that_was_handed_out(stage: Stage) -> None:
    urls: list[str] = []
    park(inviting(stage, process(stage), urls))
    app = process(stage)
    app.runtime.url = "https://moved.example.com"
    sync = inviting(stage, app, urls)
    park(sync)
    app.deliver(token_of(urls[0]), "x")
    assert sync(1) == "x"
    park(sync, 2)
    assert urls[1].startswith("https://moved.example.com/")


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_url_that_was_handed_out_leads_somewhere_whatever_crashed(stage: Stage, at: int, landed: bool) -> None:
    urls: list[str] = []
    with pytest.raises((Died, Waiting)):
        inviting(stage, process(stage, at, landed=landed), urls)(1)
    stage.lapse()
    app = process(stage)
    sync = inviting(stage, app, urls)
    park(sync)
    assert len(set(urls)) == 1
    assert app.deliver(token_of(urls[-1]), "came").first
    assert sync(1) == "came"


def test_of_many_calls_at_once_exactly_one_counts(stage: Stage) -> None:
    urls: list[str] = []
    app, other = process(stage), process(stage)
    park(inviting(stage, app, urls))
    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(lambda n: (app, other)[n % 2].deliver(token_of(urls[0]), n), range(8)))
    assert sum(answer.first for answer in told) == 1
    assert len({answer.answer for answer in told}) == 1


@pytest.mark.parametrize("token", ["", "guess", "x" * 5_000, "\ud800"])
def test_a_token_that_was_never_handed_out_is_refused_and_not_repeated(stage: Stage, token: str) -> None:
    app = process(stage)
    with pytest.raises(NoSuchWait) as caught:
        app.deliver(token, "x")
    assert not token or token not in str(caught.value)


def test_the_store_knows_only_a_hash_of_where_a_token_leads(stage: Stage) -> None:
    urls: list[str] = []
    park(inviting(stage, process(stage), urls))
    token = token_of(urls[0])
    assert len(token) == 32
    page = stage.engine.scan("callback", None, None, None, 10)
    assert [token in f"{record.at}{record.body}" for record in page.records] == [False]


def test_no_token_is_ever_logged(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    urls: list[str] = []
    app = process(stage)
    sync = inviting(stage, app, urls)
    park(sync)
    app.deliver(token_of(urls[0]), "x")
    app.deliver(token_of(urls[0]), "x")
    sync(1)
    assert token_of(urls[0]) not in caplog.text


@pytest.mark.parametrize("url", ["", "hooks.example.com", "ftp://hooks.example.com"])
def test_without_an_address_of_its_own_an_app_says_what_to_set(stage: Stage, url: str) -> None:
    app = process(stage)
    app.runtime.url = url
    with pytest.raises(Misuse, match="TWICEPROOF_URL"):
        inviting(stage, app, [])(1)


def test_the_address_comes_from_the_app_or_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWICEPROOF_URL", "https://env.example.com/")
    with App("memory://") as app, App("memory://", url="https://told.example.com") as told:
        assert (app.runtime.url, told.runtime.url) == ("https://env.example.com/", "https://told.example.com")
        assert handed_out(app).startswith("https://env.example.com/v1/callbacks/")
        assert handed_out(told).startswith("https://told.example.com/v1/callbacks/")


def handed_out(app: App) -> str:
    @app.flow(key="order:{order}", name="sync")
    def sync(order: int) -> str:
        return str(app.callback_url("paid"))

    return sync(1)


def test_a_url_of_a_forgotten_run_does_not_end_a_wait_of_the_next_one(stage: Stage) -> None:
    urls: list[str] = []
    app = process(stage)
    sync = inviting(stage, app, urls, keep="1h")
    park(sync)
    app.deliver(token_of(urls[0]), "old")
    assert sync(1) == "old"
    stage.clock.advance(3_601)
    park(sync)
    with pytest.raises(NoSuchWait):
        app.deliver(token_of(urls[0]), "old again")
    assert app.deliver(token_of(urls[1]), "new").first
    assert work(app) == 1
    assert sync(1) == "new"


def test_where_a_token_leads_is_kept_while_its_run_is_and_no_longer(stage: Stage) -> None:
    urls: list[str] = []
    app = process(stage)
    sync = inviting(stage, app, urls, keep="1d", timeout="300d")
    park(sync)
    for _ in range(4):
        stage.clock.advance(31 * 86_400)
        block(sweep(app.store))
    assert app.deliver(token_of(urls[0]), "x").first
    assert sync(1) == "x"
    for _ in range(4):
        stage.clock.advance(31 * 86_400)
        block(sweep(app.store))
    assert stage.engine.scan("callback", None, None, None, 10).records == []
