"""`twiceproof connector`: files for no-code tools."""

from __future__ import annotations

import json

import pytest


@pytest.mark.parametrize("tool", ["power-automate", "n8n"])
def test_the_help_of_a_connector_shows_how_to_write_that_one(run, tool):
    shown = run("connector", tool, "-h").stdout
    assert f"twiceproof connector {tool} --url https://hooks.example.com -o twiceproof." in shown


@pytest.mark.parametrize("tool", ["power-automate", "n8n"])
@pytest.mark.parametrize(
    "url", ["https://me:canary@h.io", "https://h.io?code=canary", "https://h.io\nx", "http://[::1", "http://"]
)
def test_no_secret_gets_into_a_connector_and_nothing_that_is_no_address(run, tool, url):
    refused = run("connector", tool, "--url", url, code=2)
    assert "https://hooks.example.com" in refused.stderr
    assert "canary" not in refused.stdout + refused.stderr


@pytest.mark.parametrize("tool", ["power-automate", "n8n"])
@pytest.mark.parametrize("url", ["https://h.io:8443/below/", "http://[::1]:8000", "http://127.0.0.1"])
def test_a_server_may_be_anywhere(run, tool, url):
    assert url.split("//")[1].split("/")[0] in run("connector", tool, "--url", url).stdout


@pytest.mark.parametrize("tool", ["power-automate", "n8n"])
def test_a_connector_needs_an_address(run, tool, tmp_path, monkeypatch):
    monkeypatch.delenv("TWICEPROOF_URL", raising=False)
    assert "TWICEPROOF_URL" in run("connector", tool, code=2).stderr
    run("connector", tool, "--host", "a", "--url", "http://b", code=2)
    run("connector", tool, "--url", "ftp://b", code=2)
    json.loads(run("connector", tool, "--host", "hooks.example.com").stdout)
    file = tmp_path / "file.json"
    assert "Import" in run("connector", tool, "--url", "https://hooks.example.com", "-o", str(file)).stdout
    assert "hooks.example.com" in file.read_text()
    assert "another file" in run("connector", tool, "--host", "h", "-o", str(tmp_path / "no" / "file"), code=2).stderr
