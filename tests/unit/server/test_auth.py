"""Who may call: tokens, their scopes, tenants and time; and what happens where there are none."""

import asyncio

import pytest

from tests.unit.server.local_server import LocalServer, Shop
from twiceproof import App, Misuse, env
from twiceproof.operations import block
from twiceproof.server.auth import FRESH
from twiceproof.server.limits import ServerLimits
from twiceproof.server.serve import Options, trust_of, warn_if_open, warn_of_missing_secrets
from twiceproof.server.tokens import GRANTS, Scope, any_token, create_token, list_tokens, revoke_token

METRICS = "/metrics"
JSON = ("content-type", "application/json")


def test_on_loopback_without_a_token_everybody_is_the_operator(server):
    assert server.call("GET", METRICS).status == 200


def test_elsewhere_without_a_token_nobody_is(app):
    server = LocalServer(app, trust="nobody")
    answer = server.call("GET", METRICS)
    assert (answer.status, answer.kind) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"


def test_from_the_first_token_on_every_caller_needs_one(server, clock):
    assert server.call("GET", METRICS).status == 200
    token = server.token(Scope.READ)
    clock.advance(FRESH)
    assert server.call("GET", METRICS).status == 401
    assert server.call("GET", METRICS, token=token).status == 200


def test_revoking_the_last_token_does_not_open_the_door(server, clock):
    server.token(Scope.READ)
    block(revoke_token(server.app.store, "tester"))
    clock.advance(FRESH)
    assert server.call("GET", METRICS).status == 401


def test_a_revoked_token_is_worthless_within_seconds(server, clock):
    token = server.token(Scope.READ)
    assert server.call("GET", METRICS, token=token).status == 200
    block(revoke_token(server.app.store, "tester"))
    clock.advance(FRESH)
    answer = server.call("GET", METRICS, token=token)
    assert (answer.status, answer.kind) == (401, "unauthorized")


def test_a_token_is_not_looked_up_for_every_request(server, monkeypatch):
    token = server.token(Scope.READ)
    server.call("GET", METRICS, token=token)
    monkeypatch.setattr(server.app.store, "read", None)
    assert server.call("GET", METRICS, token=token).status == 200


def test_a_token_ends_when_its_time_is_over(server, clock):
    token = server.token(Scope.READ, lasts=60.0)
    assert server.call("GET", METRICS, token=token).status == 200
    clock.advance(61)
    assert server.call("GET", METRICS, token=token).status == 401


@pytest.mark.parametrize("shown", ["Bearer", "Bearer ", "Basic dGVzdDp0ZXN0", "Bearer tp_wrong", "tp_wrong", ""])
def test_what_is_no_token_is_refused_even_where_none_is_needed(server, shown):
    answer = server.call("POST", "/hooks/shop", b"{}", [("authorization", shown), ("x-secret", "s3cret")])
    assert (answer.status, answer.kind) == (401, "unauthorized")
    assert server.call("GET", "/healthz", headers=[("authorization", shown)]).status == 200


OUTSIDE = [("POST", "/v1/callbacks/x"), ("GET", "/v1/approvals/link/x"), ("POST", "/v1/approvals/link/x")]


@pytest.mark.parametrize(("method", "path"), OUTSIDE)
@pytest.mark.parametrize("shown", ["Basic dGVzdDp0ZXN0", "Bearer eyJhbGciOi.of.theirs", "Bearer", ""])
def test_where_the_address_is_the_proof_a_header_means_nothing(server, method, path, shown):
    """A gateway's own, or a browser's password for the whole site: refused for it, a callback would be lost."""
    plain = server.call(method, path, b"{}", [JSON])
    assert server.call(method, path, b"{}", [JSON, ("authorization", shown)]).json == plain.json
    assert "unauthorized" not in plain.json["type"]


@pytest.mark.parametrize(("method", "path"), OUTSIDE)
def test_a_token_of_ours_that_is_not_good_is_refused_there_too(server, method, path):
    assert server.call(method, path, b"{}", [JSON, ("authorization", "Bearer tp_wrong")]).status == 401


def test_a_page_of_another_site_is_not_the_operator(server):
    """The operator's own browser carries its requests to us; the Origin header gives them away."""
    assert server.call("GET", METRICS, headers=[("origin", "https://evil.example")]).status == 401
    assert server.call("GET", METRICS, headers=[("origin", "http://127.0.0.1:8321")]).status == 200


@pytest.mark.parametrize("host", [("host", "evil.example"), ("host", "evil.example:8321"), None])
def test_a_name_that_was_made_to_lead_here_is_not_the_operators(server, host):
    assert server.call("GET", METRICS, host=host).status == 401


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1", "[::1]:8321"])
def test_this_machines_own_names_are_the_operators(server, host):
    assert server.call("GET", METRICS, host=("host", host)).status == 200


def test_a_token_without_the_scope_is_told_which_one_it_needs(server):
    answer = server.call("GET", METRICS, token=server.token(Scope.INGEST))
    assert (answer.status, answer.kind) == (403, "forbidden")


def test_what_all_tenants_did_is_told_to_the_apps_own_tenant_only(server):
    assert server.call("GET", METRICS, token=server.token(Scope.ADMIN, tenant="acme")).status == 403
    assert server.call("GET", METRICS, token=server.token(Scope.ADMIN)).status == 200


def test_a_store_that_is_down_lets_nobody_in(server, monkeypatch):
    from twiceproof.errors import StoreUnavailable

    token = server.token(Scope.READ)

    def down(at):
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(server.app.store, "read", down)
    answer = server.call("GET", METRICS, token=token)
    assert (answer.status, answer.kind) == (503, "store-unavailable")
    assert answer.headers["retry-after"] == "1"


# -- tokens --------------------------------------------------------------------------------------


def test_only_a_tokens_hash_is_in_the_store(app):
    secret, _ = block(create_token(app.store, "ci", "default", [Scope.ADMIN]))
    page = asyncio.run(app.store.scan("token").wait())
    assert len(page.records) == 1
    assert secret not in str(page.records)
    assert len(secret) >= 43


def test_two_tokens_are_never_the_same(app):
    made = {block(create_token(app.store, "ci", "default", [Scope.READ]))[0] for _ in range(100)}
    assert len(made) == 100


def test_a_token_of_nothing_is_refused(app):
    for scopes in ([], [Scope.OPEN], [Scope.OPERATOR]):
        with pytest.raises(Misuse, match="needs scopes"):
            block(create_token(app.store, "ci", "default", scopes))


def test_a_name_that_two_tokens_have_is_not_enough_to_revoke_one(app):
    ids = [block(create_token(app.store, "ci", "default", [Scope.READ]))[1].id for _ in range(2)]
    with pytest.raises(Misuse, match="give an id"):
        block(revoke_token(app.store, "ci"))
    block(revoke_token(app.store, ids[0]))
    assert block(revoke_token(app.store, "ci")).id == ids[1]
    assert [token.state for token in block(list_tokens(app.store))] == ["revoked", "revoked"]


def test_an_unknown_token_cannot_be_revoked(app):
    with pytest.raises(Misuse, match="no live token"):
        block(revoke_token(app.store, "nobody"))
    assert not block(any_token(app.store))


def test_admin_is_every_scope(server):
    assert set(GRANTS) == {Scope.INGEST, Scope.RUN, Scope.APPROVE, Scope.READ, Scope.RELEASE, Scope.ADMIN}
    from twiceproof.server.tokens import Principal

    admin, reader = Principal("a", frozenset({Scope.ADMIN}), "t"), Principal("r", frozenset({Scope.READ}), "t")
    assert all(admin.may(scope) for scope in GRANTS)
    assert [scope for scope in GRANTS if reader.may(scope)] == [Scope.READ]


def test_who_would_serve_to_everybody_is_told_how_to_make_a_token_in_that_ledger(tmp_path):
    with App(f"sqlite:///{tmp_path}/shop.db") as app, pytest.raises(Misuse) as refused:
        trust_of(app, Options(host="0.0.0.0"))
    assert f"twiceproof --store sqlite:///{tmp_path}/shop.db tokens create" in str(refused.value)


def test_a_webhook_without_its_secret_is_warned_of_at_the_start(monkeypatch, caplog):
    with App("memory://") as app:
        flow = app.flow(key="event:{event[id]}", name="take")(lambda event: None)
        app.webhook("stripe", secret=env("STRIPE_SECRET"), start=flow)
        monkeypatch.setenv("STRIPE_SECRET", "whsec_1")
        warn_of_missing_secrets(app)
        assert not caplog.records
        monkeypatch.delenv("STRIPE_SECRET")
        warn_of_missing_secrets(app)
    assert "stripe" in caplog.text and "its secret is not set" in caplog.text


@pytest.mark.parametrize("name", ["127.0.0.1.evil.example", "127.evil.example", "127.1.evil", "localhost.evil.example"])
def test_a_name_that_only_looks_like_this_machine_is_not_it(server, name):
    """Its owner makes it lead here, and a page of theirs in the operator's browser has it as its own origin."""
    for headers in ([], [("origin", f"http://{name}:8321")]):
        assert server.call("GET", METRICS, headers=headers, host=("host", f"{name}:8321")).status == 401
    assert server.call("GET", METRICS, host=("host", "127.0.0.2:8321")).status == 200


def test_a_page_of_another_program_on_this_machine_is_not_the_operator(server):
    for origin in ("http://127.0.0.1:3000", "http://127.0.0.1", "null"):
        assert server.call("GET", METRICS, headers=[("origin", origin)]).status == 401
    assert server.call("GET", METRICS, headers=[("origin", "http://127.0.0.1:8321")]).status == 200


def test_a_hook_whose_sender_shows_its_secret_in_authorization_can_be_called(app):
    sync = app.flows["sync"]
    app.webhook("cloudevents", header="Authorization", secret="s3cret-of-the-sender", name="ce")(_flow(sync))
    server = LocalServer(app)
    body = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{}}'
    kind = ("content-type", "application/cloudevents+json")
    for word, status in (("Bearer s3cret-of-the-sender", 200), ("Bearer wrong", 401), ("tp_wrong", 401)):
        assert server.call("POST", "/hooks/ce", body, [kind, ("authorization", word)]).status == status


def _flow(flow):
    def start(order):
        return order

    start.flow = flow
    return start


def test_who_asks_first_without_the_secret_does_not_learn_which_hooks_there_are(app):
    app.webhook("event_grid", secret="s3cret-of-the-grid", name="grid")(_flow(app.flows["sync"]))
    server = LocalServer(app)
    asking = [("webhook-request-origin", "eventgrid.azure.net")]
    answers = [server.call("OPTIONS", f"/hooks/{name}", b"", asking) for name in ("grid", "grid?code=wrong", "none")]
    assert {(answer.status, answer.body) for answer in answers} == {(401, answers[2].body)}
    right = server.call("OPTIONS", "/hooks/grid?code=s3cret-of-the-grid", b"", asking)
    assert (right.status, right.headers["webhook-allowed-origin"]) == (200, "eventgrid.azure.net")


def test_who_guesses_tokens_is_stopped_before_the_store_is_asked(app, monkeypatch):
    server = LocalServer(app, limits=ServerLimits(per_source=1.0))
    token, looked = server.token(Scope.READ), []
    assert server.call("GET", METRICS, token=token, client="203.0.113.9").status == 200
    monkeypatch.setattr("twiceproof.server.auth.find_token", lambda store, digest: looked.append(digest) or nobody())
    response = [server.call("GET", METRICS, token=f"tp_{guess}", client="203.0.113.9").status for guess in range(20)]
    assert (response[:2], set(response[2:]), len(looked)) == ([401, 401], {429}, 2)
    assert server.call("GET", METRICS, token=token, client="203.0.113.9").status == 200


def nobody():
    return
    yield


@pytest.mark.parametrize(
    "name",
    [
        "x-forwarded-for",
        "forwarded",
        "x-forwarded-host",
        "x-real-ip",
        "via",
        "x-forwarded-proto",
        "x-forwarded-port",
        "x-client-ip",
        "x-original-host",
        "cf-connecting-ip",
        "true-client-ip",
        "fly-client-ip",
        "x-envoy-external-address",
        "x-forwarded-server",
        "cf-ray",
        "cf-visitor",
        "x-amzn-trace-id",
        "x-azure-clientip",
        "x-azure-fdid",
        "x-arr-ssl",
        "x-cluster-client-ip",
        "cdn-loop",
        "x-cloud-trace-context",
        "x-appengine-user-ip",
        "x-vercel-forwarded-for",
        "fastly-client-ip",
        "tailscale-user-login",
        "x-forwarded",
        "x-varnish",
    ],
)
def test_who_calls_through_a_proxy_is_not_on_this_machine(server, name):
    """A proxy on this machine lets everybody through, and may say our own address as the host."""
    answer = server.call("GET", METRICS, headers=[(name, "127.0.0.1")])
    assert (answer.status, answer.kind) == (401, "through-a-proxy")
    assert name in answer.json["detail"] and "twiceproof tokens create" in answer.json["next"]
    assert server.call("GET", METRICS).status == 200


@pytest.mark.parametrize("version", ["1.0", "0.9"])
def test_http_of_old_as_nginx_speaks_it_by_default_is_taken_for_a_proxys(server, version):
    answer = server.call("GET", METRICS, version=version)
    assert (answer.status, answer.kind) == (401, "through-a-proxy")
    assert f"HTTP/{version}" in answer.json["detail"] and "--open" in answer.json["next"]


@pytest.mark.parametrize("version", ["1.1", "2"])
@pytest.mark.parametrize("host", ["127.0.0.1:8321", "localhost:8321", "[::1]:8321", "localhost"])
def test_plain_calls_of_this_machine_need_no_token(server, version, host):
    more = [("user-agent", "curl/7.88.1"), ("accept", "*/*"), ("connection", "close"), ("x-request-id", "1")]
    assert server.call("GET", METRICS, headers=more, host=("host", host), version=version).status == 200
    page = [("origin", f"http://{host}"), ("sec-fetch-site", "same-origin"), ("accept-language", "de")]
    assert server.call("POST", "/v1/runs/sync", b'{"id": "1"}', [*page, JSON], host=("host", host)).status < 300


def test_an_application_under_another_server_does_not_believe_another_machine(server):
    """uvicorn on 0.0.0.0 with `make_application`: the Host header is the caller's own word."""
    answer = server.call("GET", METRICS, client="203.0.113.9")
    assert (answer.status, answer.kind) == (401, "through-a-proxy")
    assert server.call("GET", METRICS, client="::1").status == 200


def test_what_proves_itself_or_tells_nothing_comes_in_through_a_proxy(server):
    """Before there is any token: webhooks have their signature, callbacks and links the secret in their address."""
    seen = [("x-forwarded-for", "203.0.113.9")]
    for path in ("/healthz", "/readyz", "/openapi.json"):
        assert server.call("GET", path, headers=seen, version="1.0").status == 200
    signed = [("x-secret", "s3cret"), *seen]
    assert server.call("POST", "/hooks/shop", b'{"id": "17"}', signed, version="1.0").status == 200
    assert server.call("POST", "/hooks/shop", b'{"id": "17"}', seen, version="1.0").kind == "not-verified"
    assert server.call("POST", "/v1/callbacks/x", b"{}", [JSON, *seen], version="1.0").kind == "no-such-callback"


def test_with_a_token_whoever_shows_it_comes_in_through_a_proxy(server, clock):
    seen = [("x-forwarded-for", "203.0.113.9")]
    token = server.token(Scope.READ)
    assert server.call("GET", METRICS, headers=seen, token=token, version="1.0").status == 200
    clock.advance(FRESH)
    answer = server.call("GET", METRICS, headers=seen, version="1.0")
    assert (answer.status, answer.kind) == (401, "unauthorized")


def test_open_lets_everybody_in_through_a_proxy_while_there_is_no_token(app, clock):
    server = LocalServer(app, trust=trust_of(app, Options(open=True)))
    seen = [("x-forwarded-for", "203.0.113.9")]
    assert server.call("GET", METRICS, headers=seen, host=("host", "hooks.example.com"), version="1.0").status == 200
    server.token(Scope.READ)
    clock.advance(FRESH)
    assert server.call("GET", METRICS, headers=seen, version="1.0").status == 401


@pytest.mark.parametrize(("trust", "word"), [("loopback", "OPEN"), ("everybody", "INSECURE")])
def test_a_server_without_a_token_says_at_its_start_whose_it_is(app, caplog, trust, word):
    warn_if_open(app, trust, "http://127.0.0.1:8321")
    (line,) = caplog.records
    assert line.levelname == "WARNING" and line.getMessage().startswith(f"{word}: no token exists")
    assert "http://127.0.0.1:8321" in line.getMessage() and "twiceproof tokens create" in line.getMessage()


@pytest.mark.parametrize("trust", ["loopback", "everybody", "nobody"])
def test_a_server_with_a_token_has_nothing_to_warn_of(app, caplog, trust):
    block(create_token(app.store, "ops", "default", [Scope.ADMIN]))
    warn_if_open(app, trust, "http://127.0.0.1:8321")
    assert not caplog.records


def test_the_public_name_is_not_the_operators(clock):
    with App("memory://", clock=clock, url="https://hooks.example.com") as app:
        assert LocalServer(app).call("GET", METRICS, host=("host", "hooks.example.com")).status == 401
        assert LocalServer(app).call("GET", METRICS).status == 200


def test_behind_a_proxy_it_refuses_to_start_without_a_token(app):
    with pytest.raises(Misuse, match=r"127\.0\.0\.1 behind a proxy can be reached from other machines"):
        trust_of(app, Options(behind_proxy=True))
    assert trust_of(app, Options(behind_proxy=True, open=True)) == "everybody"
    assert trust_of(app, Options()) == "loopback"
    block(create_token(app.store, "ops", "default", [Scope.ADMIN]))
    assert trust_of(app, Options(behind_proxy=True)) == "nobody"


@pytest.mark.parametrize("host", ["[", "[x]", "a]b"])
@pytest.mark.parametrize("source", ["event_grid", "dataverse", "twilio", "square"])
def test_a_host_that_is_none_does_not_tell_which_hooks_there_are(app, caplog, source, host):
    app.webhook(source, secret="s3cret-of-the-shop")(_flow(app.flows["sync"]))
    signed = [("content-type", "application/json"), ("x-twilio-signature", "x")]
    here, nowhere = (
        LocalServer(app).call("POST", f"/hooks/{name}", b"{}", signed, host=("host", host)) for name in (source, "none")
    )
    assert (here.status, here.body) == (nowhere.status, nowhere.body) and here.status == 401
    assert "Traceback" not in caplog.text


def test_a_source_that_breaks_while_it_verifies_believes_nothing_and_tells_nothing(app, caplog):
    class Breaking(Shop):
        name = "breaking"

        def verify(self, envelope, secrets, now):
            raise ValueError("no such thing")

    app.webhook(Breaking(), secret="s3cret")(_flow(app.flows["sync"]))
    here, nowhere = (LocalServer(app).call("POST", f"/hooks/{name}", b'{"id": "1"}') for name in ("breaking", "none"))
    assert (here.status, here.body) == (nowhere.status, nowhere.body) and here.status == 401
    assert "breaking: verifying a delivery raised an error" in caplog.text
    assert not app.runs()


@pytest.mark.parametrize(
    ("method", "path", "has", "wants"),
    [
        ("GET", "/metrics", Scope.INGEST, "read"),
        ("POST", "/hooks/shop", Scope.READ, "ingest"),
        ("POST", "/v1/callbacks/x", Scope.READ, "ingest"),
        ("PUT", "/v1/claims/ship/1", Scope.READ, "ingest"),
        ("POST", "/v1/runs/sync", Scope.READ, "run"),
        ("GET", "/v1/approvals/x", Scope.READ, "approve"),
    ],
)
def test_the_scope_that_a_refusal_names_can_be_given_and_lets_in(app, method, path, has, wants):
    server = LocalServer(app)
    answer = server.call(method, path, token=server.token(has))
    assert (answer.status, answer.kind) == (403, "forbidden")
    named = answer.json["next"].rpartition("--scope ")[2].split()[0].rstrip(",.;")
    assert named == wants and Scope(named) in GRANTS
    assert server.call(method, path, token=server.token(Scope(named))).status != 403


def test_a_refusal_says_where_no_token_is_needed_or_one_of_the_apps_own_tenant(app):
    server = LocalServer(app)
    other = server.token(Scope.READ, tenant="acme")
    assert "the app's own tenant" in server.call("GET", "/metrics", token=other).json["next"]
    reader = server.token(Scope.READ)
    assert server.call("GET", "/metrics", token=reader).status == 200
    assert "or none at all" in server.call("POST", "/v1/callbacks/x", token=reader).json["next"]
    assert server.call("POST", "/v1/callbacks/x").status == 404
