"""Objects that another database user puts beside the ledger's are never called, whatever the search path is."""

import contextlib
import os

import psycopg
import pytest

from twiceproof import App
from twiceproof.errors import Misuse, SchemaMismatch, StoreUnsafe
from twiceproof.records import Address, Check, Insert, Remove, Replace, Written
from twiceproof.stores.grouped import GroupedStore
from twiceproof.stores.postgres.engine import PostgresEngine

pytestmark = pytest.mark.server

AT = Address("shop/order:1", "claim", "self")
OTHER = Address("shop/order:1", "step", "first")
LEDGER = "SELECT nspname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE relname = 'twiceproof_records'"

# What a server prefers where the types of the arguments are not said, or fit less well: it takes note of the call.
OVERLOAD = """
CREATE FUNCTION {schema}.{name}({arguments}) RETURNS {returns} LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('hijacked', '{name}');
    INSERT INTO {schema}.loot VALUES ('{name}');
    RETURN NULL;
END $$"""
TEXTS = {"insert": 10, "replace": 11, "commit": 15, "fetch": 4, "due": 5, "look": 3, "hold": 1}
BUILT_IN = [  # the catalogue's are for any type: one for exactly these fits better
    ("unnest", "list text[]", "SETOF text"),
    ("unnest", "list int[]", "SETOF int"),
    ("json_build_array", "a double precision, b bigint, c int[], d json", "json"),
    ("json_build_object", ", ".join(["text"] * 18), "json"),
    ("array_append", "a int[], b int", "int[]"),
    ("cardinality", "a text[]", "int"),
    ("concat", "a text, b text", "text"),
]
OPERATORS = [("=", "text", "varchar", "boolean"), ("||", "bigint", "text", "text"), ("||", "int[]", "int[]", "int[]")]


@pytest.fixture
def dsn(postgres_dsn):
    """A ledger, and a role that may create in its schema."""
    PostgresEngine(postgres_dsn).close()
    role = f"mallory_{os.getpid()}"
    with psycopg.connect(postgres_dsn, autocommit=True) as db:
        (schema,) = db.execute(LEDGER).fetchone()
        db.execute(f"CREATE ROLE {role} LOGIN")
        for where in {schema, "public"}:
            db.execute(f"GRANT CREATE, USAGE ON SCHEMA {where} TO {role}")
        try:
            yield postgres_dsn
        finally:
            db.execute(f"DROP OWNED BY {role}")
            db.execute(f"DROP ROLE {role}")


def hijack(dsn, schema):
    role = f"mallory_{os.getpid()}"
    with psycopg.connect(dsn.replace("postgres@", f"{role}@"), autocommit=True) as db:
        db.execute(f"CREATE TABLE {schema}.loot (name text)")
        db.execute(f"GRANT ALL ON {schema}.loot TO PUBLIC")
        for name, count in TEXTS.items():
            arguments = ", ".join(["text"] * count)
            returns = "boolean" if name == "hold" else "json"
            with contextlib.suppress(psycopg.errors.DuplicateFunction, psycopg.errors.InsufficientPrivilege):
                db.execute(
                    OVERLOAD.format(schema=schema, name=f"twiceproof_{name}", arguments=arguments, returns=returns)
                )
        for name, arguments, returns in BUILT_IN:
            with contextlib.suppress(psycopg.errors.DatatypeMismatch):
                said = OVERLOAD.format(schema=schema, name=name, arguments=arguments, returns=returns)
                db.execute(said.replace("RETURN NULL", "RETURN") if "SETOF" in returns else said)
        for nth, (name, left, right, returns) in enumerate(OPERATORS):
            function = f"hijacked_{nth}"
            db.execute(OVERLOAD.format(schema=schema, name=function, arguments=f"{left}, {right}", returns=returns))
            sides = f"LEFTARG = {left}, RIGHTARG = {right}"
            db.execute(f"CREATE OPERATOR {schema}.{name} (FUNCTION = {schema}.{function}, {sides})")


def loot(dsn, schema):
    with psycopg.connect(dsn) as db:
        return [name for (name,) in db.execute(f"SELECT name FROM {schema}.loot")]


def used(dsn):
    """Every question that a store asks."""
    with contextlib.closing(GroupedStore(PostgresEngine(dsn))) as store:
        first = store.write(Insert(AT, "mine", draw=True, queue="q", due_in=0.0)).block()
        assert isinstance(first, Written)
        assert isinstance(store.write(Replace(AT, "again", fence=first.fence)).block(), Written)
        many = [Insert(OTHER, "step"), Check(AT, fence=first.fence)]
        assert isinstance(store.write(*many).block(), Written)
        assert store.read(AT).block().record.body == "again"
        for where in ({}, {"space": AT.space}, {"state": ""}, {"space": AT.space, "state": ""}):
            assert len(store.scan("step", **where).block().records) == 1
        assert isinstance(store.write(Remove(OTHER, version=store.read(OTHER).block().record.version)).block(), Written)
        store.due("claim", queues={"q"}).block()
        assert store.engine.examine()
        store.engine.confirm()


def joined(dsn):
    with App(dsn) as app:

        @app.transaction
        def write(connection):
            return connection.execute("SELECT 1").fetchone()[0]

        @app.flow(key="{n}")
        def flow(n):
            return write()

        assert flow(1) == 1


@pytest.mark.parametrize("where", ["the ledger's schema", "public"])
@pytest.mark.parametrize("path", ['"$user", public', "{schema}, public", "public, {schema}, pg_catalog"])
def test_an_overload_of_another_user_is_never_called(dsn, where, path):
    with psycopg.connect(dsn, autocommit=True) as db:
        (schema,) = db.execute(LEDGER).fetchone()
        db.execute(f'ALTER DATABASE "{db.info.dbname}" SET search_path = {path.format(schema=schema)}')
    place = schema if where != "public" else "public"
    hijack(dsn, place)
    used(dsn)
    joined(dsn)
    assert loot(dsn, place) == []


def findings(dsn):
    with contextlib.closing(PostgresEngine(dsn)) as engine:
        return {found.name: (found.level, found.found, found.advice) for found in engine.examine()}


def test_the_doctor_tells_of_foreign_objects_and_of_rights_to_create_them(dsn):
    told = findings(dsn)
    assert told["foreign objects"][0] == "ok"
    assert told["create rights"][0] == "warn" and "mallory" in told["create rights"][1]
    assert "REVOKE CREATE ON SCHEMA twiceproof FROM mallory" in told["create rights"][2]
    hijack(dsn, "twiceproof")
    level, found, _ = findings(dsn)["foreign objects"]
    assert level == "warn" and "of mallory" in found
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute(f"DROP OWNED BY mallory_{os.getpid()}")
    told = findings(dsn)
    assert (told["foreign objects"][0], told["create rights"][0]) == ("ok", "ok")


def test_a_table_that_somebody_else_laid_out_for_the_ledger_is_not_taken_for_ours(postgres_dsn):
    with psycopg.connect(postgres_dsn, autocommit=True) as db:
        owner, app = f"early_{os.getpid()}", f"app_{os.getpid()}"
        for role in (owner, app):
            db.execute(f"CREATE ROLE {role} LOGIN")
        try:
            db.execute(f"CREATE SCHEMA twiceproof AUTHORIZATION {app}")
            db.execute(f"GRANT CREATE, USAGE ON SCHEMA twiceproof TO {owner}")
            db.execute(f"SET ROLE {owner}")
            db.execute("CREATE TABLE twiceproof.twiceproof_migrations (number int PRIMARY KEY, name text NOT NULL)")
            db.execute("GRANT ALL ON twiceproof.twiceproof_migrations TO PUBLIC")
            db.execute("RESET ROLE")
            with pytest.raises(StoreUnsafe, match=f"belongs to {owner}"):
                PostgresEngine(postgres_dsn.replace("postgres@", f"{app}@"))
            db.execute("DROP TABLE twiceproof.twiceproof_migrations")
            PostgresEngine(postgres_dsn.replace("postgres@", f"{app}@")).close()
        finally:
            db.execute(f"DROP OWNED BY {owner}, {app} CASCADE")
            db.execute(f"DROP ROLE {owner}, {app}")


def test_every_function_that_looks_up_names_when_it_runs_has_its_own_search_path(dsn):
    """Those of one SQL expression were looked up when they were made, and can be written into the statement."""
    with psycopg.connect(dsn) as db:
        late = db.execute(
            "SELECT proname, proconfig FROM pg_proc"
            " WHERE pronamespace = 'twiceproof'::regnamespace AND prosqlbody IS NULL"
        ).fetchall()
    assert {name for name, _ in late} >= {"twiceproof_insert", "twiceproof_commit", "twiceproof_due"}
    assert [name for name, config in late if "search_path=pg_catalog, pg_temp" not in (config or ())] == []


def test_a_schema_can_be_named_and_two_ledgers_live_beside_each_other(postgres_dsn):
    first, second = (GroupedStore(PostgresEngine(f"{postgres_dsn}{more}")) for more in ("", "?schema=billing"))
    first.write(Insert(AT, "first")).block()
    assert second.read(AT).block().record is None
    assert isinstance(second.write(Insert(AT, "second")).block(), Written)
    assert first.read(AT).block().record.body == "first"
    for store in (first, second):
        store.close()


@pytest.mark.parametrize("name", ["", "Big", "a-b", 'x"y', "pg_temp", "information_schema", "a" * 64])
def test_a_name_that_is_no_schema_of_ours_is_refused(name):
    with pytest.raises(Misuse, match="schema="):
        PostgresEngine(f"postgresql://postgres@127.0.0.1:1/x?schema={name}")


def test_a_ledger_where_the_search_path_led_an_earlier_build_is_not_left_silently(postgres_dsn):
    old = GroupedStore(PostgresEngine(f"{postgres_dsn}?schema=public"))
    old.write(Insert(AT, "old")).block()
    old.close()
    with pytest.raises(SchemaMismatch, match=r"add \?schema=public to the URL"):
        PostgresEngine(postgres_dsn)
    for schema, there in (("public", True), ("twiceproof", False)):
        store = GroupedStore(PostgresEngine(f"{postgres_dsn}?schema={schema}"))
        assert (store.read(AT).block().record is not None) is there
        store.close()
    PostgresEngine(postgres_dsn).close()  # there is one in the schema of our own by now
