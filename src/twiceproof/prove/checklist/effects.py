"""Which calls reach outside, which bring something new each time: by the modules they belong to."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["begins_threads", "changes_each_time", "creates", "draws", "reaches_outside", "writes_files"]

OUTSIDE = re.compile(
    r"(requests|httpx|httpx2|aiohttp|urllib3?|http\.client|smtplib|aiosmtplib|boto3|botocore|stripe|twilio|slack_sdk"
    r"|paramiko|asyncssh|subprocess|ftplib|pika|aio_pika|kafka|confluent_kafka|redis|psycopg|asyncpg|pymysql|_?sqlite3"
    r"|sqlalchemy|pymongo|azure|google\.cloud)\b"
)
SPEAKS = re.compile(
    r"(get|post|put|patch|delete|request|send|sendmail|send_message|urlopen|execute|executemany|run|call|check_call"
    r"|check_output|Popen|publish|upload|create|invoke|connect|stream)"
)
WRITES = re.compile(
    r"pathlib(\._local)?\.(Path|PosixPath|WindowsPath)\.(write_text|write_bytes|unlink|rename|replace|touch|rmdir|mkdir)"
    r"|shutil\.(copy|copy2|copyfile|copytree|move|rmtree)|(os|posix|nt)\.(remove|unlink|rename|replace|rmdir|mkdir|makedirs)"
)
OPENS = re.compile(r"_?io\.open|pathlib(\._local)?\.(Path|PosixPath|WindowsPath)\.open")
MADE_ANEW = {
    "time.time", "time.time_ns", "time.monotonic", "time.perf_counter", "time.localtime", "time.gmtime",
    "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today",
    "uuid.uuid1", "uuid.uuid4", "uuid.uuid6", "uuid.uuid7", "os.urandom", "os.getpid",
}  # fmt: skip
THREADS = re.compile(
    r"(concurrent\.futures|multiprocessing)\.(.*\.)?(\w*Executor|\w*Pool|Process|submit|map|starmap|apply_async)"
    r"|threading\.(Thread|Timer)|_thread\.start_new_thread|(.*\.)?run_in_executor"
)
DICE = re.compile(r"(random|secrets|numpy\.random)\.")
DRAWN = re.compile(r"uuid\.uuid[1467]|os\.urandom|(random|secrets|numpy\.random)\..*")
POSTS = re.compile(r"\.(post|create|insert|insert_one|insert_many|add)$")
PLAIN_INSERT = re.compile(r"\binsert\s+into\b", re.IGNORECASE)
UPSERT = re.compile(r"\bon\s+(conflict|duplicate)\b|\binsert\s+or\s+(ignore|replace)\b|\bwhere\s+not\s+exists\b", re.I)


def reaches_outside(path: str) -> bool:
    """A call of a known client. Making one reaches nobody; asking it something does."""
    return bool(OUTSIDE.match(path)) and bool(SPEAKS.fullmatch(path.rsplit(".", 1)[-1]))


def writes_files(path: str, given: Sequence[str]) -> bool:
    """`given` are the literal texts among the arguments: a mode is one of them."""
    return bool(WRITES.fullmatch(path)) or bool(
        OPENS.fullmatch(path) and any(re.fullmatch(r"[rbt+]*[wax+][rwaxbt+]*", text) for text in given)
    )


def changes_each_time(path: str) -> bool:
    return path in MADE_ANEW or bool(DICE.match(path))


def begins_threads(path: str) -> bool:
    """Threads and processes that know nothing of their run. `asyncio.to_thread` takes it along."""
    return bool(THREADS.fullmatch(path))


def draws(path: str) -> bool:
    """Whether it is made for this attempt alone. A clock may be read for a log, and tells nothing."""
    return bool(DRAWN.fullmatch(path))


def creates(path: str, text: str | None) -> bool:
    """Whether a call makes something new each time it is run, as far as its name or its SQL tells."""
    if text is not None and PLAIN_INSERT.search(text):
        return not UPSERT.search(text)
    return bool(OUTSIDE.match(path) and POSTS.search("." + path.rsplit(".", 1)[-1]))
