"""Tests `detect_drift --source`. With this option, the job compares the changelog with a copy of a table in another
store.

Such a copy may be late. So if keys differ, the job waits `--settle` seconds, and then compares these keys a second
time.
"""

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the usual alias

from changelog.connectors.servers.postgres import PostgresServer
from changelog.connectors.sources.fences import ROWS
from changelog.envelope.errors import ChangelogError
from changelog.envelope.versions import Version
from changelog.schemas.types import Array, ColumnType, Decimal, Primitive, Struct
from changelog.spark_jobs.detect_drift import JOB
from changelog.spark_jobs.drift.foreign_source import Masks, rows_of
from changelog.spark_jobs.runner.job import main
from tests.campaigns._plant import last_only, latest, rewrite
from tests.integration.site import Site
from tests.servers import fetched, fresh_database
from tests.spark.ran import Ran, Run

TABLES = r"""
CREATE TABLE sale (
    id bigint, shop int, note text, price float8, ratio real, amount numeric(12,2), at timestamptz,
    local timestamp, day date, open boolean, raw bytea, doc jsonb, uid uuid, PRIMARY KEY (shop, id)
);
INSERT INTO sale SELECT n, n % 2, 'say "hi" \ ' || n || E'\n\u00e9', n * 1e15 / 7, n / 3.0, n / 8.0,
    '2026-11-21 03:10:02.5+00', '2026-11-21 03:10:02.25', '2026-11-21', n % 2 = 0, '\x00ff', '{"b": 1.50, "a": null}',
    '00000000-0000-0000-0000-000000000001'
FROM generate_series(1, 12) AS n;
INSERT INTO sale (id, shop, price, ratio, doc) VALUES (20, 0, 'NaN', '-Infinity', 'null');
"""
ENTITIES = """
[drift]
severe_ppm = 1e6
[entities.sale]
table = "public.sale"
"""

PEOPLE = """
CREATE TABLE person (id int PRIMARY KEY, name text, age int, open boolean, owes numeric(9,2), note text);
INSERT INTO person VALUES (1, 'a "quoted" name', 7, true, 1.5, 'x'), (2, NULL, NULL, NULL, NULL, 'x'),
    (3, 'third', 8, false, 3.5, 'x'), (4, 'e', -4, false, 4.5, 'x');
"""
MASKED = """
[mask]
key = "a secret of sixteen"
[drift]
severe_ppm = 1e6
[entities.person]
table = "public.person"
mask = { name = "sha256", age = "sha256", open = "sha256", owes = "sha256", note = "null" }
"""

SQL = """
SELECT id, shop, note, price, ratio, amount, at, CAST(local AS TIMESTAMP_NTZ) AS local, day, open, raw, doc, uid
FROM given
"""

Detect = Callable[..., Ran]


@pytest.fixture(scope="module")
def site(server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A changelog whose service has stopped."""
    with fresh_database(server) as dsn:
        new_site = Site(dsn, tmp_path_factory.mktemp("other"))
        new_site.sql(TABLES)
        new_site.configure(ENTITIES)
        with new_site.running() as service:
            service.until(lambda: len(new_site.state("sale")) == 13)
        yield new_site


@pytest.fixture
def copy(spark: SparkSession, site: Site) -> DataFrame:
    """A copy of the table, with types as another store may have them."""
    rows = site.sql(
        "SELECT id, shop, note, price, ratio, amount, at, local::text, day, open, raw, doc::text, uid::text FROM sale"
    )
    types = (
        "id bigint, shop int, note string, price double, ratio float, amount decimal(12,2), at timestamp, "
        "local string, day date, open boolean, raw binary, doc string, uid string"
    )
    spark.createDataFrame([tuple(row) for row in rows], types).createOrReplaceTempView("given")
    return spark.sql(SQL)


@pytest.fixture
def detect(run: Run, site: Site, tmp_path: Path) -> Detect:
    """Returns a function that compares the changelog with a table over JDBC, or with a data frame. A data frame is
    first written to Parquet files, which the job then reads.
    """

    def detect(source: DataFrame | Mapping[str, str], *arguments: str, code: int = 0, site: Site = site) -> Ran:
        if isinstance(source, DataFrame):
            source.coalesce(1).write.mode("overwrite").parquet(str(tmp_path / "source"))
            arguments = ("--source", "parquet", "--source-option", f"path={tmp_path / 'source'}", *arguments)
        else:
            arguments = (
                "--source",
                "jdbc",
                *(f"--source-option={name}={value}" for name, value in source.items()),
                *arguments,
            )
        arguments = ("--out", str(tmp_path / "drift"), "--entities", "sale", "--settle", "0", *arguments)
        return run(JOB, site.config, *arguments, code=code)

    return detect


def test_a_copy_is_compared_value_by_value_and_reported_as_not_exact(copy: DataFrame, detect: Detect) -> None:
    report = detect(copy).report
    assert (report["verdict"], report["exact"], report["fence"]) == ("clean", False, None)
    assert "no snapshot" in report["why"]
    assert (report["entities"]["sale"]["sourceRows"], report["entities"]["sale"]["changelogRows"]) == (13, 13)
    copy.createOrReplaceTempView("copy")
    changed = copy.sparkSession.sql(
        "SELECT CASE id WHEN 12 THEN 112 ELSE id END AS id, shop, note, "
        "CASE id WHEN 1 THEN 1.0 ELSE price END AS price, "
        "CASE id WHEN 2 THEN CAST(0 AS FLOAT) ELSE ratio END AS ratio, amount, "
        "CASE id WHEN 3 THEN at + INTERVAL 1 MICROSECOND ELSE at END AS at, local, day, "
        "CASE id WHEN 4 THEN NULL ELSE open END AS open, raw, "
        """CASE id WHEN 5 THEN '{"a": null, "b": 1.50}' WHEN 6 THEN '{"a": null, "b": 1.5}' ELSE doc END AS doc, uid """
        "FROM copy WHERE id <> 11"
    )
    drifted = detect(changed, code=1).drifted()
    assert {key: columns for key, (kind, columns) in drifted.items() if kind == "changed"} == {
        '["1","1"]': ["price"],
        '["0","2"]': ["ratio"],
        '["1","3"]': ["at"],
        '["0","4"]': ["open"],
        '["0","6"]': ["doc"],
    }
    assert {key: kind for key, (kind, _) in drifted.items() if kind != "changed"} == {
        '["1","11"]': "extra",
        '["0","12"]': "extra",
        '["0","112"]': "missing",
    }


LAGGING = """(
    SELECT CASE id WHEN 12 THEN 112 ELSE id END AS id, shop, CASE id WHEN 1 THEN '' ELSE note END AS note, price, ratio,
        CAST(CASE WHEN id = 5 AND nextval('reads') < 3 THEN 0 ELSE amount END AS numeric(12,2)) AS amount,
        at, local, day, open, raw,
        CASE id WHEN 6 THEN '{"a": null, "b": 1.5}' ELSE doc::text END AS doc, uid::text
    FROM sale WHERE id <> 11
) AS copy"""
"""A copy of the table with drift. Row 5 is wrong only in the first two reads, as in a copy that is late."""


def test_a_table_over_jdbc_is_read_again_once_it_has_settled(site: Site, detect: Detect) -> None:
    fetched("jars")
    site.sql("CREATE SEQUENCE reads")
    server = conninfo_to_dict(site.dsn)
    url = f"jdbc:postgresql://{server['host']}:{server['port']}/{server['dbname']}?user={server['user']}"
    options = {"url": url, "dbtable": LAGGING, "preferTimestampNTZ": "true"}
    [error_line] = detect({**options, "url": url.replace("postgresql", "nothing")}, code=2).lines
    assert "no driver for this JDBC URL" in error_line
    ran = detect(options, "--settle", "0.1", code=1)
    report = ran.report
    assert (report["exact"], report["source"]["kind"]) == (False, "jdbc")
    assert "no snapshot" in report["why"]
    assert ran.drifted() == {
        '["1","1"]': ("changed", ["note"]),
        '["0","6"]': ("changed", ["doc"]),
        '["1","11"]': ("extra", []),
        '["0","12"]': ("extra", []),
        '["0","112"]': ("missing", []),
    }
    assert site.sql("SELECT last_value FROM reads")[0][0] >= 3


def test_a_key_that_changes_during_the_comparison_is_left_out(
    copy: DataFrame, site: Site, detect: Detect, tmp_path: Path
) -> None:
    own = Site(site.dsn, tmp_path)
    own.configure(ENTITIES)
    shutil.copytree(site.log, own.log)
    row = latest(own.log, "sale")["sale", '["1","3"]']
    later_row = {**row, "committed_at": datetime.now(UTC) + timedelta(days=1)}
    rewrite(own.log, {("sale", row["key"]): last_only(row["position"], lambda _: [later_row])})
    changed = copy.withColumn("note", F.when(F.col("id").isin(3, 5), F.lit("another")).otherwise(F.col("note")))
    assert detect(changed, code=1, site=own).drifted() == {'["1","5"]': ("changed", ["note"])}


def test_masked_columns_are_compared_by_their_masked_values(
    server: PostgresServer, spark: SparkSession, run: Run, tmp_path: Path
) -> None:
    with fresh_database(server) as dsn:
        site = Site(dsn, tmp_path)
        site.sql(PEOPLE)
        site.configure(MASKED)
        with site.running() as service:
            service.until(lambda: len(site.state("person")) == 4)
        rows = [
            (1, 'a "quoted" name', 7, True, "1.50"),
            (2, None, None, None, None),
            (3, "another", 9, False, "3.50"),
            (4, "e", -4, False, "4.50"),
        ]
        frame = spark.createDataFrame(rows, "id int, name string, age int, open boolean, owes string")
        path = str(tmp_path / "source")
        frame.coalesce(1).write.parquet(path)
        arguments = ("--source", "parquet", "--source-option", f"path={path}", "--settle", "0")
        ran = run(JOB, site.config, *arguments, "--entities", "person", "--out", str(tmp_path / "drift"), code=1)
        assert ran.drifted() == {"3": ("changed", ["age", "name"])}
        assert "another" not in ran.beside("report.json").read_text() + ran.beside("keys.jsonl").read_text()
        frame.withColumn("owes", F.col("owes").cast("double")).write.mode("overwrite").parquet(path)
        [line] = run(JOB, site.config, *arguments, "--entities", "person", code=2).lines
        assert "column owes of the entity person: double cannot hold the changelog's values" in line


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("id, shop", "--source has no column note of the entity sale"),
        (
            "*, CAST(amount AS double) AS cast",
            "column amount of the entity sale: double cannot hold the changelog's values",
        ),
    ],
)
def test_a_column_that_cannot_be_compared_is_refused_by_name(
    copy: DataFrame, detect: Detect, columns: str, message: str
) -> None:
    frame = copy.selectExpr(*columns.split(", "))
    if "cast" in frame.columns:
        frame = frame.drop("amount").withColumnRenamed("cast", "amount")
    [line] = detect(frame, code=2).lines
    assert message in line


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("type_", [*Primitive, Decimal(precision=12, scale=2)], ids=str)
def test_a_refused_column_is_accepted_once_it_has_the_type_in_the_hint(
    spark: SparkSession, type_: ColumnType, masked: bool
) -> None:
    masks = Masks(kinds={"value": "sha256"} if masked else {}, hmac_key=b"a secret of sixteen")
    frame = spark.createDataFrame([], "id long, value map<string, int>")
    with pytest.raises(ChangelogError, match="column value of the entity sale: map") as refused:
        rows_of(frame, _version(type_), masks)
    hinted = re.search(r"reads the column as ([a-z_]+(\(\d+,\d+\))?)", refused.value.hint or "")
    assert hinted is not None, refused.value.hint
    corrected = frame.select("id", F.lit(None).cast(hinted[1]).alias("value"))
    assert rows_of(corrected, _version(type_), masks).columns == ROWS.names


@pytest.mark.parametrize("type_", [Array(element=Primitive.INT), Struct(fields=()), Decimal(precision=39, scale=2)])
def test_a_column_that_spark_cannot_hold_has_no_other_type_in_the_hint(spark: SparkSession, type_: ColumnType) -> None:
    frame = spark.createDataFrame([], "id long, value array<int>")
    with pytest.raises(ChangelogError, match="column value of the entity sale: array<int>") as refused:
        rows_of(frame, _version(type_), Masks(kinds={}, hmac_key=b""))
    assert "leave out --source" in (refused.value.hint or "")


def _version(type_: ColumnType) -> Version:
    """Returns a version of the columns of the entity `sale`: `id`, which is the key, and `value`."""
    return Version(
        entity="sale",
        number=1,
        columns=Struct(fields=(("id", Primitive.LONG), ("value", type_))),
        relation=None,
        cluster="",
        key=("id",),
        settings="",
        restated=(),
        broke=False,
        state=b"",
    )


def test_the_option_source_needs_one_entity_and_excludes_repair(
    site: Site, capsys: pytest.CaptureFixture[str], spark: SparkSession
) -> None:
    config = ["--config", str(site.config), "--source", "parquet"]
    for arguments in ([], ["--entities", "a", "b"], ["--entities", "sale", "--repair"]):
        assert main(JOB, [*config, *arguments]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
