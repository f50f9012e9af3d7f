"""Readers: each can be read again, tells when it did not reach its end, and holds little in memory."""

from __future__ import annotations

import sqlite3
import threading

import pytest

from twiceproof import App, Misuse
from twiceproof.clock import system_clock
from twiceproof.reconcile import csv_rows, file_rows, json_rows, sql_rows
from twiceproof.reconcile.readers import Reading, SourceIncomplete, as_reader, pumped

READING = Reading(system_clock)


def rows_of(given, patience: float = 10.0):
    return [dict(row) for batch in pumped(as_reader(given), READING, patience) for row in batch]


def test_a_list_a_function_and_what_is_awaited_are_read_again_and_again():
    async def awaited():
        for number in range(3):
            yield {"id": number}

    wanted = [{"id": 0}, {"id": 1}, {"id": 2}]
    for given in (wanted, tuple(wanted), lambda: iter(wanted), awaited):
        reader = as_reader(given)
        assert [rows_of(reader), rows_of(reader)] == [wanted, wanted]


def test_an_iterator_which_ends_after_the_first_reading_is_refused():
    async def awaited():
        yield {}

    for given in (iter([{}]), awaited(), 17):
        with pytest.raises(Misuse):
            as_reader(given)


@pytest.mark.parametrize("error", [OSError("reset"), ValueError("odd"), KeyError("id")])
def test_whatever_stops_a_reader_makes_it_incomplete(error):
    def breaking():
        yield {"id": 1}
        raise error

    with pytest.raises(SourceIncomplete, match=type(error).__name__):
        rows_of(breaking)


def test_a_reader_that_hangs_is_given_up_and_ends_when_it_goes_on():
    let_go, ended = threading.Event(), threading.Event()

    def hanging():
        try:
            yield {"id": 1}
            let_go.wait(10)
            for number in range(10_000):
                yield {"id": number}
        finally:
            ended.set()

    with pytest.raises(SourceIncomplete, match=r"no row came for 0\.05 s"):
        rows_of(hanging, patience=0.05)
    let_go.set()
    assert ended.wait(10)


def test_a_csv_file_is_read_by_its_header_with_any_mark_at_its_beginning(tmp_path):
    path = tmp_path / "orders.csv"
    path.write_bytes('\ufeffid;name\n1;"a;b"\n\n007;Ärger\n'.encode())
    assert rows_of(csv_rows(path, delimiter=";")) == [{"id": "1", "name": "a;b"}, {"id": "007", "name": "Ärger"}]


@pytest.mark.parametrize("text", ["", "id,total\n1,2\n3", 'id,total\n1,"2', "id,total\n1,2,3\n"])
def test_a_csv_file_that_was_cut_off_is_incomplete(tmp_path, text):
    path = tmp_path / "orders.csv"
    path.write_text(text)
    with pytest.raises(SourceIncomplete):
        rows_of(csv_rows(path))
    with pytest.raises(SourceIncomplete, match="FileNotFoundError"):
        rows_of(csv_rows(tmp_path / "none.csv"))


def test_json_lines_are_rows_and_one_that_is_cut_off_makes_them_incomplete(tmp_path):
    path = tmp_path / "orders.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"id": 1}\n\n{"id": 2}\n')
    assert rows_of(json_rows(path)) == [{"id": 1}, {"id": 2}]
    for rest in ('{"id": 3', "[3]", "nonsense"):
        path.write_text('{"id": 1}\n' + rest)
        with pytest.raises(SourceIncomplete, match="line 2 is no JSON object"):
            rows_of(json_rows(path))


def test_files_are_rows(tmp_path):
    (tmp_path / "in_1.pdf").write_bytes(b"123")
    (tmp_path / "notes.txt").write_bytes(b"")
    (tmp_path / "deep.pdf").mkdir()
    (row,) = rows_of(file_rows(tmp_path, "*.pdf"))
    assert (row["name"], row["size"]) == ("in_1.pdf", 3) and row["modified"] > 0
    with pytest.raises(SourceIncomplete):
        rows_of(file_rows(tmp_path / "none"))


# -- databases -----------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE orders (id INTEGER, name TEXT)")
        db.executemany("INSERT INTO orders VALUES (?, ?)", [(number, f"a:b {number}") for number in range(5)])
    db.close()
    return path


def test_a_query_is_read_with_parameters_by_name(database):
    rows = sql_rows(f"sqlite:///{database}", "SELECT id, ':no' AS text FROM orders WHERE id >= :least", {"least": 3})
    assert rows_of(rows) == [{"id": 3, "text": ":no"}, {"id": 4, "text": ":no"}]
    assert len(rows_of(sql_rows(lambda: sqlite3.connect(database), "SELECT * FROM orders"))) == 5


def test_a_query_that_fails_is_incomplete_and_one_that_is_none_is_refused(database):
    with pytest.raises(SourceIncomplete):
        rows_of(sql_rows(f"sqlite:///{database}", "SELECT nothing FROM orders"))
    with pytest.raises(SourceIncomplete):
        rows_of(sql_rows(f"sqlite:///{database}x", "SELECT 1"))
    for given in (("sqlite:///a.db", " "), (17, "SELECT 1")):
        with pytest.raises(Misuse):
            sql_rows(*given)


KEYS = ["a", "A", "\u00e4", "z", "Z", "ss", "\u00df", "10", "9", "-", "_", "o'neil"]


@pytest.mark.server
def test_two_databases_that_sort_and_compare_texts_otherwise_have_the_same_keys(postgres_dsn, mariadb_url):
    made = "SELECT * FROM (" + " UNION ALL ".join(f"SELECT :k{number} AS id" for number in range(len(KEYS))) + ") AS t"
    given = {f"k{number}": key for number, key in enumerate(KEYS)}
    with App("memory://") as app:

        @app.reconcile(grace="0s")
        def both(find):
            left = find.source("postgres", sql_rows(postgres_dsn, f"{made} ORDER BY id", given), key="{id}", id="{id}")
            right = find.source("mariadb", sql_rows(mariadb_url, f"{made} ORDER BY id", given), key="{id}", id="{id}")
            yield find.missing(left, right)
            yield find.extra(right, left)
            yield find.duplicates(right)

        report = app.reconcile_now("both")
    assert [source.rows for source in report.sources] == [len(KEYS), len(KEYS)]
    assert report.complete and report.findings == []


@pytest.mark.server
def test_a_server_sends_a_query_in_parts_and_compares_no_collations(postgres_dsn):
    url = postgres_dsn
    query = "SELECT number AS id, '100%' AS text, '2026-01-01'::date AS day FROM generate_series(1, :most) AS number"
    rows = rows_of(sql_rows(url, query, {"most": 5_000}))
    assert len(rows) == 5_000 and rows[0]["text"] == "100%" and rows[-1]["id"] == 5_000
    assert len(rows_of(sql_rows(url, "SELECT '100%' AS text"))) == 1
    with pytest.raises(SourceIncomplete, match="SyntaxError"):
        rows_of(sql_rows(url, "CREATE TABLE twiceproof_none (id int)"))
