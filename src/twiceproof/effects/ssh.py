"""Starts work on another machine over SSH, for `app.remote(start=ssh_start("host", "command"), …)`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..errors import Misuse, NotDone

__all__ = ["CALLBACK", "EFFECT_KEY", "script_of", "ssh_start", "start_command"]


CALLBACK, EFFECT_KEY = "TWICEPROOF_CALLBACK_URL", "TWICEPROOF_EFFECT_KEY"
LONGEST_COMPLAINT = 300


def ssh_start(
    host: str,
    command: str | Sequence[str],
    *,
    detach: bool = True,
    log: str = "/dev/null",
    connect_timeout: float = 30.0,
    timeout: float = 60.0,
    **options: Any,
) -> Callable[..., None]:
    """Return a function that runs `command` on `host`, with the callback URL and the effect key in its environment.

    A string is run by the remote shell; a list is one program and its arguments. With `detach` it continues when the
    connection ends, and writes to `log`; otherwise it must detach itself (`sbatch`, `systemd-run`). An exit status
    other than 0 means that it was not started. `options` are passed to `asyncssh.connect` (username, client_keys,
    known_hosts).
    """
    script = script_of(command, detach=detach, log=log)

    def start(url: str, effect_key: str = "") -> None:
        stdin = f"{_line(url)}\n{_line(effect_key)}\n"
        work = start_command(host, script, stdin, connect_timeout, timeout, options)
        with ThreadPoolExecutor(1) as pool:  # the caller's thread may have a running event loop
            pool.submit(_run, work).result()

    return start


def script_of(command: str | Sequence[str], *, detach: bool = True, log: str = "/dev/null") -> str:
    """Return one command for any remote login shell. It contains no secret, because `ps` shows it to all users."""
    arguments = ["sh", "-c", command] if isinstance(command, str) else list(command)
    if not arguments or not all(
        isinstance(argument, str) and argument and "\0" not in argument for argument in arguments
    ):
        raise Misuse("ssh_start needs a command: a string for the shell, or a list of a program and its arguments.")
    read = f"IFS= read -r {CALLBACK} && IFS= read -r {EFFECT_KEY} || exit 65; export {CALLBACK} {EFFECT_KEY}"
    missing = f"{{ echo {shlex.quote(arguments[0] + ': not found')} >&2; exit 127; }}"
    there = f"command -v {shlex.quote(arguments[0])} >/dev/null || {missing}"
    run = f"exec {shlex.join(arguments)} </dev/null"
    if detach:
        # An unwritable log would only fail in the background, after the start was reported as successful.
        run = f": >>{shlex.quote(log)} || exit 73; nohup {shlex.join(arguments)} </dev/null >>{shlex.quote(log)} 2>&1 &"
    return f"exec sh -c {shlex.quote('; '.join((read, there, run)))}"


def _line(text: str) -> str:
    """The remote shell reads line by line: a line break would end up in the next variable."""
    if "\n" in text or "\r" in text or "\0" in text:
        raise Misuse("A callback URL and an effect key are one line each; check what was passed to start().")
    return text


def _run(work: Any) -> None:
    import asyncio

    asyncio.run(work)


async def start_command(
    host: str, script: str, stdin: str, connect_timeout: float, timeout: float, options: dict[str, Any]
) -> None:
    """Connect, and start the script. Raises NotDone for what certainly was not started."""
    asyncssh = _asyncssh()
    try:
        connection = await asyncssh.connect(host, connect_timeout=connect_timeout, **options)
    except (OSError, TimeoutError, asyncssh.Error) as error:
        raise NotDone(f"{host} could not be reached ({_describe(error)}); nothing was started.") from error
    async with connection:
        await _execute(asyncssh, connection, host, script, stdin, timeout)


async def _execute(asyncssh: Any, connection: Any, host: str, script: str, stdin: str, timeout: float) -> None:
    """From here on the command may have started, so a lost connection leaves the outcome unknown."""
    import asyncio

    try:
        async with asyncio.timeout(timeout):
            done = await connection.run(script, input=stdin, check=False)
    except asyncssh.ChannelOpenError as error:
        raise NotDone(f"{host} refused the session ({_describe(error)}); nothing was started.") from error
    except (OSError, asyncssh.Error) as error:
        raise ConnectionError(
            f"the connection to {host} broke ({_describe(error)}); it may have been started"
        ) from error
    if done.exit_status is None or done.exit_signal is not None:
        raise ConnectionError(f"{host} did not report how the start ended; it may have been started")
    if done.exit_status != 0:
        complaint = _without(str(done.stderr or ""), stdin)
        raise NotDone(f"{host} answered with exit status {done.exit_status}: {complaint or 'no output'}.")


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _without(text: str, stdin: str) -> str:
    """Remove the secrets from error output, which would carry the callback's token into errors and logs."""
    for secret in filter(None, stdin.split("\n")):
        text = text.replace(secret, "…")
    return " ".join(text.split())[:LONGEST_COMPLAINT]


def _asyncssh() -> Any:
    try:
        import asyncssh
    except ImportError:
        raise Misuse("ssh_start needs asyncssh; install it with: pip install 'twiceproof[ssh]'") from None
    return asyncssh
