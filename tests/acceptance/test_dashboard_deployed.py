"""The dashboard as it is deployed: from the wheel, under a path of another application, behind a proxy with TLS."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from hashlib import sha256
from pathlib import Path

import pytest

from tests.acceptance.dashboards import Dashboard, Visitor, chromium, declare, fill
from tests.servers.tls import TlsProxy, make_certificate
from twiceproof import App
from twiceproof.server.tokens import Scope

MOUNT = "/twiceproof"


class Mounted:
    """The application under a path, as a framework mounts it."""

    def __init__(self, inner):
        self.inner = inner

    async def __call__(self, scope, receive, send):
        await self.inner({**scope, "root_path": MOUNT}, receive, send)


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deployed")
    with App(f"sqlite:///{folder}/shop.db") as app:
        fill(app, declare(app))
        made = Dashboard(app, wrap=Mounted, behind_proxy=True)
        proxy = TlsProxy(make_certificate(folder), "127.0.0.1", made.port)
        made.url = f"https://127.0.0.1:{proxy.port}{MOUNT}"
        yield app, made
        made.close()


def test_links_forms_cookies_and_streams_work_under_a_path_behind_tls(shop):
    app, made = shop
    token = made.token("ann", Scope.READ, Scope.APPROVE)
    with chromium() as browser:
        visitor = Visitor(browser, made, ignore_https_errors=True)
        page = visitor.go(f"{made.url}/runs")
        page.wait_for_url("**/login?next=*")
        page.fill("input[name=token]", token)
        page.click("text=Log in >> nth=-1")
        page.wait_for_url(f"{made.url}/runs")
        [cookie] = visitor.context.cookies()
        assert (cookie["name"], cookie["secure"], cookie["path"]) == ("__Host-twiceproof", True, "/")
        page.click("nav.places a:text('Review')")
        page.wait_for_url(f"{made.url}/review")
        page.locator("[data-count=approvals]:visible").wait_for()  # what the event stream told
        page.click("a.open:has-text('10493')")
        page.wait_for_url(f"{made.url}/runs/*")
        page.locator(".choice").last.locator("input").check()
        page.click("button:text-is('Settle')")
        page.wait_for_url("**said=settled")
        assert app.history(page.url.partition("/runs/")[2].partition("?")[0]).settled["by"] == "ann"
        assert (visitor.refused(), visitor.elsewhere, visitor.errors) == ([], [], [])
        visitor.close()


ROOT = Path(__file__).parents[2]
SHOP = """
from pathlib import Path
import twiceproof
app = twiceproof.App("sqlite:///shop.db")
Path("from").write_text(twiceproof.__file__)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """What `pip install` puts in place from a wheel, without an index."""
    pytest.importorskip("hatchling")
    folder, pip = tmp_path_factory.mktemp("wheel"), [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    built = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(built, cwd=ROOT, check=True, capture_output=True)
    [wheel] = folder.glob("twiceproof-*.whl")
    placed = [*pip, "install", "--no-index", "--no-deps", "--target", str(folder / "site"), str(wheel)]
    subprocess.run(placed, check=True, capture_output=True)
    return folder / "site"


def test_pages_and_static_files_are_in_the_wheel(installed, tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    path = f"{installed}{os.pathsep}{tmp_path}"
    command = [sys.executable, "-m", "twiceproof", "serve", "shop:app", "--port", "0", "--json"]
    environment = {**os.environ, "PYTHONPATH": path, "PATH": "/nothing"}  # no node, nor anything else
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            url = json.loads(process.stdout.readline())["url"]
            assert (tmp_path / "from").read_text().startswith(str(installed))
            page = urllib.request.urlopen(url).read().decode()
            files = set(re.findall(r'(?:href|src)="(/static/[^"]+)"', page))
            assert len(files) == 4
            for file in files:
                with urllib.request.urlopen(url + file) as answer:
                    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
                    assert sha256(answer.read()).hexdigest()[:12] in file
        finally:
            process.kill()
