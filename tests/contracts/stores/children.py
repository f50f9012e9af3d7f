"""Starts children and talks with them line by line."""

import subprocess
import sys
from contextlib import contextmanager


class Child:
    def __init__(self, *words):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.contracts.stores.sqlite_child", *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self):
        return self.process.stdout.readline().strip()

    def go(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def kill(self):
        self.process.kill()

    def end(self):
        """The rest of what it says, and its exit code."""
        rest, _ = self.process.communicate(timeout=60)
        return rest.split(), self.process.returncode


@contextmanager
def children(count, *words):
    """So many, all ready to begin; killed if the test ends without them."""
    started = [Child(*words) for _ in range(count)]
    try:
        for child in started:
            assert child.line() == "ready"
        yield started
    finally:
        for child in started:
            child.kill()
            child.process.communicate()
