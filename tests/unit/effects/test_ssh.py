"""`ssh_start`: work on another machine is started over a real SSH connection, and told where to call back."""

from __future__ import annotations

import asyncio
import os
import select
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

asyncssh = pytest.importorskip("asyncssh", reason="asyncssh is not installed: pip install 'twiceproof[ssh]'")

from tests.servers.address import closed_port  # noqa: E402
from tests.unit.effects.ssh_server import Keys, asyncssh_server, system_sshd  # noqa: E402
from twiceproof import App, Misuse, NotDone, Waiting  # noqa: E402
from twiceproof.claims.error_classification import classify  # noqa: E402
from twiceproof.effects.ssh import script_of, ssh_start  # noqa: E402

URL = "https://hooks.example.com/v1/callbacks/s3cret-token"
ECHO = 'printf "%s\\n%s\\n" "$TWICEPROOF_CALLBACK_URL" "$TWICEPROOF_EFFECT_KEY"'


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


@pytest.fixture(params=["sshd", "asyncssh"])
def options(request: pytest.FixtureRequest, keys: Keys) -> Iterator[dict[str, Any]]:
    with (system_sshd if request.param == "sshd" else asyncssh_server)(keys) as port:
        yield keys.options(port)


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Any]:
    """A named pipe: what the job writes to it is heard without sleeping."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    ear = os.open(path, os.O_RDWR)

    def hear() -> str:
        ready, _, _ = select.select([ear], [], [], 20)
        assert ready, "the job never spoke"
        return os.read(ear, 65_536).decode()

    hear.path = str(path)  # type: ignore[attr-defined]
    yield hear
    os.close(ear)


def test_the_job_runs_detached_and_knows_its_url_and_key(options: Any, pipe: Any) -> None:
    ssh_start("127.0.0.1", f"{ECHO} >{shlex.quote(pipe.path)}", **options)(URL, effect_key="tp_1")
    assert pipe() == f"{URL}\ntp_1\n"


def test_the_session_ends_while_the_job_goes_on(options: Any, pipe: Any, tmp_path: Path) -> None:
    """The job waits for a word that is only given after the session has ended."""
    go = tmp_path / "go"
    os.mkfifo(go)
    job = f"read word <{shlex.quote(str(go))}; echo $word >{shlex.quote(pipe.path)}"
    ssh_start("127.0.0.1", job, **options)(URL)
    go.write_text("alive\n")
    assert pipe() == "alive\n"


def test_a_list_is_one_program_and_its_arguments_whatever_is_in_them(options: Any, tmp_path: Path, pipe: Any) -> None:
    nasty = "a b; $(touch owned) 'q' \"d\" `x` \\ é *"
    program = tmp_path / "my job"
    program.write_text(f'#!/bin/sh\nprintf %s "$1" >{shlex.quote(pipe.path)}\n')
    program.chmod(0o700)
    ssh_start("127.0.0.1", [str(program), nasty], **options)(URL)
    assert pipe() == nasty
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("url", ["https://x/$(touch owned)", "https://x/'; touch owned; '", "https://x/`touch owned`"])
def test_a_url_is_data_and_never_a_command(options: Any, pipe: Any, url: str, tmp_path: Path) -> None:
    ssh_start("127.0.0.1", f"cd {shlex.quote(str(tmp_path))}; {ECHO} >{shlex.quote(pipe.path)}", **options)(url)
    assert pipe() == f"{url}\n\n"
    assert not (tmp_path / "owned").exists()


def test_what_the_job_says_goes_to_a_log(options: Any, tmp_path: Path, pipe: Any) -> None:
    log = tmp_path / "job log"
    ssh_start("127.0.0.1", f"echo hello; echo done >{shlex.quote(pipe.path)}", log=str(log), **options)(URL)
    pipe()
    assert "hello" in log.read_text()


# -- not started -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "how", "said"),
    [
        ("exit 3", {"detach": False}, "exit status 3"),
        (["no-such-program-here"], {}, "not found"),
        ("true", {"log": "/no/such/folder/log"}, "exit status"),
    ],
)
def test_a_start_that_is_refused_was_not_done(options: Any, command: Any, how: Any, said: str) -> None:
    with pytest.raises(NotDone, match=said):
        ssh_start("127.0.0.1", command, **how, **options)(URL)


def test_without_detaching_a_success_is_the_commands_own(options: Any, tmp_path: Path) -> None:
    told = tmp_path / "told"
    ssh_start("127.0.0.1", f"{ECHO} >{shlex.quote(str(told))}", detach=False, **options)(URL, effect_key="tp_1")
    assert told.read_text() == f"{URL}\ntp_1\n"


def test_a_complaint_does_not_carry_the_url(options: Any) -> None:
    with pytest.raises(NotDone) as caught:
        ssh_start("127.0.0.1", f"{ECHO} >&2; exit 1", detach=False, **options)(URL)
    assert "s3cret" not in str(caught.value)
    assert "…" in str(caught.value)


def test_a_server_that_is_not_there_or_not_the_one_that_is_known_was_told_nothing(keys: Keys, tmp_path: Path) -> None:
    with closed_port() as port, pytest.raises(NotDone, match="could not be reached"):
        ssh_start("127.0.0.1", "true", **keys.options(port))(URL)
    (tmp_path / "other").mkdir()
    with asyncssh_server(keys) as port:
        stranger = {**keys.options(port), "known_hosts": Keys(tmp_path / "other").options(port)["known_hosts"]}
        with pytest.raises(NotDone, match="HostKeyNotVerifiable"):
            ssh_start("127.0.0.1", "true", **stranger)(URL)


# -- nobody knows ----------------------------------------------------------------------------------


def test_a_connection_that_breaks_after_the_command_was_sent_leaves_a_doubt(keys: Keys) -> None:
    async def hang_up(process: Any) -> None:
        await process.stdin.read()
        process.channel.get_connection().abort()

    with asyncssh_server(keys, hang_up) as port, pytest.raises(ConnectionError, match="may have been started") as lost:
        ssh_start("127.0.0.1", "true", **keys.options(port))(URL)
    assert classify(lost.value) == "ambiguous"


def test_a_server_that_never_answers_leaves_a_doubt(keys: Keys) -> None:
    async def sit_still(process: Any) -> None:
        await process.stdin.read()
        await asyncio.Event().wait()

    with asyncssh_server(keys, sit_still) as port, pytest.raises(ConnectionError) as lost:
        ssh_start("127.0.0.1", "true", timeout=0.3, **keys.options(port))(URL)
    assert classify(lost.value) == "ambiguous"


# -- in a flow -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
def test_a_flow_starts_a_job_over_ssh_once_and_gets_its_callback(options: Any, pipe: Any, is_async: bool) -> None:
    start = ssh_start("127.0.0.1", f"{ECHO} >{shlex.quote(pipe.path)}", **options)
    with App("memory://", url="https://hooks.example.com") as app:
        if is_async:

            @app.flow(key="job:{n}")
            async def render(n: int) -> Any:
                return await app.remote(start=start, callback="rendered", timeout="1h")

            def call() -> Any:
                return asyncio.run(render(1))
        else:

            @app.flow(key="job:{n}")
            def render(n: int) -> Any:
                return app.remote(start=start, callback="rendered", timeout="1h")

            def call() -> Any:
                return render(1)

        with pytest.raises(Waiting):
            call()
        url, key = pipe().splitlines()
        assert key.startswith("tp_")
        with pytest.raises(Waiting):
            call()
        app.deliver(url.rsplit("/", 1)[1], {"frames": 24})
        assert call() == {"frames": 24}


# -- the script itself -----------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["", [], [""], ["a\0b"], [1]])
def test_a_command_that_is_none_is_refused(command: Any) -> None:
    with pytest.raises(Misuse, match="needs a command"):
        script_of(command)


@pytest.mark.parametrize("url", ["https://x/\nmore", "https://x/\0"])
def test_a_url_of_two_lines_is_refused(url: str) -> None:
    with pytest.raises(Misuse, match="one line each"):
        ssh_start("127.0.0.1", "true")(url)


def test_the_script_holds_nothing_secret_and_is_one_word_for_any_shell() -> None:
    script = script_of(["render", "--file", "a b"])
    assert shlex.split(script)[:3] == ["exec", "sh", "-c"]
    assert len(shlex.split(script)) == 4
    assert subprocess.run(["sh", "-n", "-c", shlex.split(script)[3]], check=False).returncode == 0
