"""The description is true: schemathesis makes requests of it, good and bad, and finds nothing to complain of."""

import json
import subprocess
import sys

import pytest

from tests.acceptance.http_server import HttpServer

pytestmark = pytest.mark.slow

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,negative_data_rejection,positive_data_acceptance,unsupported_method,ignored_auth"
)


@pytest.fixture
def server(tmp_path):
    made = HttpServer(tmp_path, "--no-worker", "--rate", "0")
    yield made
    made.close()


def make_token(server):
    words = [sys.executable, "-m", "twiceproof", "tokens", "create", "tester", "--scope", "admin", "--json"]
    done = subprocess.run(words, cwd=server.folder, env=server.environment, capture_output=True, text=True, timeout=60)
    return json.loads(done.stdout)["token"]


# A claim of a key that an earlier request has claimed with another payload is refused, and rightly: 422 is described.
CONFIG = """
[[operations]]
include-name = "PUT /v1/claims/{operation}/{key}"
checks.positive_data_acceptance.expected-statuses = ["2xx", "401", "403", "404", "409", "422", "5xx"]
"""


def run_schemathesis(server, *words):
    (server.folder / "schemathesis.toml").write_text(CONFIG)
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"]
    limits = ["--seed", "1", "--max-examples", "15", "--no-color", "--generation-database", "none"]
    done = subprocess.run(
        [*command, *limits, "--checks", CHECKS, *words], cwd=server.folder, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_schemathesis_finds_nothing(server):
    """With a token that may do everything, and the secret of a webhook: nothing is refused for the wrong reason."""
    token = make_token(server)
    run_schemathesis(server, "--header", f"Authorization: Bearer {token}", "--header", "x-secret: s3cret")
