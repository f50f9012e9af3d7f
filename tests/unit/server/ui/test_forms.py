"""What is sent to pages: numbers in addresses, JSON that is typed, and lists of ticked runs."""

from __future__ import annotations

import re
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.acceptance.dashboards import different, parked
from tests.unit.server.local_server import LocalServer
from tests.unit.server.ui.test_access import FORM, ORIGIN, form_of
from twiceproof import App, Misuse, OutcomeUnknown
from twiceproof.claims.claim import address_of
from twiceproof.claims.manager import ClaimManager
from twiceproof.errors import StoreUnavailable
from twiceproof.operations import block
from twiceproof.records import SELF, Address, Insert
from twiceproof.server.limits import ServerLimits
from twiceproof.server.routes import ROUTES, reviews
from twiceproof.server.ui.forms import KIND, SPACE
from twiceproof.server.ui.pages import PAGES
from twiceproof.server.ui.pages.several import MOST

DEPTH = ServerLimits().depth


@pytest.fixture
def server(app: App) -> LocalServer:
    @app.step(repeat="never")
    def pay(order: int) -> None:
        raise OutcomeUnknown("no answer came")

    @app.flow(key="order:{order}")
    def buy(order: int, gift: Any = None) -> None:
        pay(order)

    made = LocalServer(app)
    made.buy = buy
    return made


def in_review(server: LocalServer, count: int) -> list[str]:
    for order in range(count):
        server.buy.start(order)
    server.app.worker().run(until_idle=True)
    return [one.run for one in server.app.review(limit=count)]


def send(server: LocalServer, path: str, opened: str, fields: dict[str, str]) -> Any:
    given = {"form": form_of(server, opened), **fields}
    return server.call("POST", path, urlencode(given).encode(), [ORIGIN, FORM])


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


LONG = "9" * 5_000  # Python reads no number of so many digits


@pytest.mark.parametrize("digits", [LONG, "-1", "x", "²", ""])
def test_a_number_in_an_address_that_is_none_counts_as_none(server: LocalServer, digits: str) -> None:
    (run,) = in_review(server, 1)
    for path in (f"/runs/{run}?from=", "/review/settled?done=", "/several/retry/told?done="):
        assert server.call("GET", path + digits).status == 200, path


@pytest.mark.parametrize(("depth", "status"), [(DEPTH, 303), (DEPTH + 1, 400), (50_000, 400)])
def test_a_result_that_is_typed_is_no_deeper_than_one_of_the_api(server: LocalServer, depth: int, status: int) -> None:
    (run,) = in_review(server, 1)
    given = {"choice": '{"verdict":"happened","step":"pay"}', "result-0": nested(depth), "by": "ann"}
    assert send(server, f"/runs/{run}/settle", f"/runs/{run}", given).status == status
    assert len(server.app.review()) == (0 if status == 303 else 1)


@pytest.mark.parametrize(("depth", "status"), [(DEPTH, 303), (DEPTH + 1, 400), (50_000, 400)])
def test_an_input_that_is_typed_is_no_deeper_than_one_of_the_api(server: LocalServer, depth: int, status: int) -> None:
    given = {"input.order": "1", "input.gift": nested(depth)}
    assert send(server, "/flows/buy/start", "/flows/buy", given).status == status
    assert len(server.app.runs()) == (1 if status == 303 else 0)


def test_a_note_may_have_any_brackets(server: LocalServer) -> None:
    (run,) = in_review(server, 1)
    given = {"choice": '{"verdict":"happened","step":"pay"}', "note": "see " + nested(DEPTH * 2), "by": "ann"}
    assert send(server, f"/runs/{run}/settle", f"/runs/{run}", given).status == 303


@pytest.mark.parametrize("path", ["/review/alike?verdict=happened&", "/several/cancel?"])
def test_more_ticked_runs_than_one_form_is_about_are_told_of(server: LocalServer, path: str) -> None:
    runs = in_review(server, MOST + 2)
    for count, told in ((MOST, False), (MOST + 2, True)):
        text = unescape(server.call("GET", path + urlencode([("run", run) for run in runs[:count]])).body.decode())
        assert len(re.findall('name="item"', text)) == MOST
        assert ("the last 2 of them are not among these" in text) is told


# -- two people decide: the second one sees that it has changed ----------------------------------


def opened(server: LocalServer, path: str, act: str) -> dict[str, str]:
    """The hidden fields of a form, as a page has them when it is opened."""
    page = server.call("GET", path).body.decode()
    form = page[page.index(f'action="{act}"') :].partition("</form>")[0]
    return {name: unescape(text) for name, text in re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', form)}


def sent(server: LocalServer, path: str, fields: dict[str, str]) -> int:
    return server.call("POST", path, urlencode(fields).encode(), [ORIGIN, FORM]).status


def test_of_two_who_decide_about_a_finding_the_second_sees_that_it_has_changed(server: LocalServer) -> None:
    name, record = different(server.app)
    path = f"/findings/{name}"
    first, second = opened(server, path, path), opened(server, path, path)
    assert sent(server, path, {**first, "decision": "suppress", "by": "ann"}) == 303
    assert sent(server, path, {**second, "decision": "acknowledge", "by": "bob"}) == 409
    assert record().state == "suppressed" and '"ann"' in record().body
    assert sent(server, path, {**opened(server, path, path), "decision": "acknowledge", "by": "bob"}) == 303


def test_of_two_who_decide_about_a_message_the_second_sees_that_it_has_changed(server: LocalServer) -> None:
    """One publishes it again; another, who saw it parked, would drop it without knowing."""
    key, record = parked(server.app)
    path = f"/messages/{key}"
    resend, drop = opened(server, path, f"{path}/resend"), opened(server, path, f"{path}/drop")
    assert sent(server, f"{path}/resend", {**resend, "by": "ann"}) == 303
    assert sent(server, f"{path}/drop", {**drop, "by": "bob"}) == 409
    assert record().state == "pending"
    assert sent(server, f"{path}/drop", {**opened(server, path, f"{path}/drop"), "by": "bob"}) == 303
    assert record().state == "dropped"


def test_a_claim_that_changes_while_it_is_released_is_kept(app: App) -> None:
    @app.once(key="{name}")
    def ship(name: str) -> str:
        return name

    ship("a")
    at = address_of("default", "ship", "a")
    seen = app.store.read(at).block().record.version
    block(ClaimManager(app.store).free(at))
    ship("a")
    with pytest.raises(Misuse, match="has changed"):
        block(ClaimManager(app.store).free(at, version=seen))
    assert app.store.read(at).block().record is not None


# -- names that no record can have -----------------------------------------------------------------

UNNAMED = ["%00", "x%00y", "x" * 3_000, "run_" + "A" * 3_000]


@pytest.mark.parametrize("name", UNNAMED, ids=["nul", "nul-within", "long", "long-run"])
def test_what_no_record_can_be_named_is_not_found(server: LocalServer, name: str) -> None:
    """A request that no store takes would otherwise be told to come again."""
    found = server.call("GET", f"/find?q={name}")
    assert found.status == 200 and b"Nothing has this name" in found.body
    for page in [one.path for one in PAGES if one.method == "GET" and "{" in one.path]:
        assert server.call("GET", re.sub("{.*?}", name, page)).status in (400, 404), page
    for route in [one.path for one in ROUTES if one.method == "GET" and "{" in one.path]:
        assert server.call("GET", re.sub("{.*?}", name, route)).status in (400, 404), route


# -- what a page says of a decision that was refused -----------------------------------------------


def said(server: LocalServer, path: str, fields: dict[str, str]) -> tuple[int, str]:
    answer = server.call("POST", path, urlencode(fields).encode(), [ORIGIN, FORM])
    return answer.status, re.sub(r"\s+", " ", unescape(re.sub("<[^>]+>", " ", answer.body.decode())))


def test_a_refused_decision_is_called_changed_only_if_something_has_changed(server: LocalServer) -> None:
    (run,) = in_review(server, 1)
    path = f"/runs/{run}/settle"
    fields = {"by": "ann", "choice": '{"verdict":"happened","step":"pay","evidence":"none"}'}
    status, text = said(server, path, {**opened(server, f"/runs/{run}", path), **fields})
    assert status == 409 and "This cannot be done" in text and "Nothing was done." in text and "Changed" not in text
    late = opened(server, f"/runs/{run}", path)
    server.app.settle_run(run, "abandon", by="bob")
    status, text = said(server, path, {**late, **fields})
    assert status == 409 and "Changed since you looked" in text and "abandon by bob" in text
    assert "Nothing was done by your form." in text


def test_of_a_form_with_an_unknown_outcome_it_is_not_said_that_nothing_was_done(server: LocalServer) -> None:
    (run,) = in_review(server, 1)
    path = f"/runs/{run}/settle"
    fields = {**opened(server, f"/runs/{run}", path), "by": "ann", "choice": '{"verdict":"abandon"}'}
    begun = Address(f"{SPACE}/{fields['form'].rpartition('.')[0]}", KIND, SELF)
    server.app.store.write(Insert(begun, "", "begun")).block()
    status, text = said(server, path, fields)
    assert status == 409 and "This form was sent before" in text
    assert "its outcome is not known" in text and "Nothing was done" not in text


def test_what_a_page_says_next_is_for_people(server: LocalServer) -> None:
    for path in ("/runs/nothing", "/messages/nothing", "/nothing", "/findings/nothing", "/keys/buy/nothing"):
        text = server.call("GET", path, headers=[("accept", "text/html")]).body.decode()
        assert "GET /" not in text and "<b>Next:</b>" in text, path
    key, _ = parked(server.app)
    fields = opened(server, f"/messages/{key}", f"/messages/{key}/drop")
    sent(server, f"/messages/{key}/drop", {**opened(server, f"/messages/{key}", f"/messages/{key}/drop"), "by": "ann"})
    status, text = said(server, f"/messages/{key}/drop", {**fields, "by": "bob"})
    assert status == 409 and "Open this page again, and look at it." in text and "/v1/" not in text


# -- one form, sent again with other contents --------------------------------------------------------


def test_a_refused_form_that_is_corrected_is_carried_out(server: LocalServer) -> None:
    """As by the back button, where the browser shows the page as it was."""
    (run,) = in_review(server, 1)
    path = f"/runs/{run}/settle"
    fields = {**opened(server, f"/runs/{run}", path), "by": "ann", "choice": '{"verdict":"happened","step":"pay"}'}
    for typed, status in (("not json", 400), ("not json", 400), ('"yes"', 303), ('"yes"', 303)):
        assert sent(server, path, {**fields, "result-0": typed}) == status
    assert [act.verb for act in server.app.acts()] == ["settle"]


def test_a_form_that_was_done_is_not_answered_for_with_other_contents(server: LocalServer) -> None:
    """Else it would be told that a decision is on record that is not."""
    (run,) = in_review(server, 1)
    path = f"/runs/{run}/settle"
    fields = {**opened(server, f"/runs/{run}", path), "by": "ann", "choice": '{"verdict":"abandon"}'}
    assert sent(server, path, fields) == 303
    status, text = said(server, path, {**fields, "choice": '{"verdict":"happened","step":"pay"}'})
    assert status == 409 and "with other contents; what is sent now was not done" in text
    assert sent(server, path, fields) == 303


def test_a_form_that_met_a_silent_store_is_not_refused_for_ever(server: LocalServer, monkeypatch: Any) -> None:
    (run,) = in_review(server, 1)
    path = f"/runs/{run}/settle"
    fields = {**opened(server, f"/runs/{run}", path), "by": "ann", "choice": '{"verdict":"abandon"}'}
    with monkeypatch.context() as patched:
        patched.setattr(reviews, "settle", silent)
        status, text = said(server, path, fields)
    assert status == 503 and "Open the page again: it shows whether something was done." in text
    assert "its outcome is not known" in said(server, path, fields)[1]
    assert sent(server, path, {**fields, **opened(server, f"/runs/{run}", path)}) == 303


def silent(*given: Any) -> Any:
    raise StoreUnavailable("no answer; try again")
