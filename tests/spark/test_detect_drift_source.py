"""Another source than the service's database: any that Spark reads, compared after it has settled."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from connectors.embedded import Server
from spark_jobs.detect_drift import JOB
from spark_jobs.job import main
from tests.campaigns._plant import last_only, latest, rewrite
from tests.integration.site import Site
from tests.servers import fetched, fresh_database

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

SQL = """
SELECT id, shop, note, price, ratio, amount, at, CAST(local AS TIMESTAMP_NTZ) AS local, day, open, raw, doc, uid
FROM given
"""

Detect = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture(scope="module")
def site(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A changelog; the service has stopped."""
    with fresh_database(server) as dsn:
        found = Site(dsn, tmp_path_factory.mktemp("other"))
        found.sql(TABLES)
        found.configure(ENTITIES)
        with found.running() as service:
            service.until(lambda: len(found.state("sale")) == 13)
        yield found


@pytest.fixture
def copy(spark: SparkSession, site: Site) -> DataFrame:
    """The table as another store would have it."""
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
def detect(spark: SparkSession, site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Detect:
    """Runs the job against a frame, written as Parquet, or what JDBC reads with these options.

    Gives its report, and what it says to a person.
    """

    def detect(
        source: DataFrame | Mapping[str, str], *words: str, code: int = 0, site: Site = site
    ) -> tuple[dict[str, Any], str]:
        if isinstance(source, DataFrame):
            source.coalesce(1).write.mode("overwrite").parquet(str(tmp_path / "source"))
            words = ("--source", "parquet", "--source-option", f"path={tmp_path / 'source'}", *words)
        else:
            words = ("--source", "jdbc", *(f"--source-option={name}={value}" for name, value in source.items()), *words)
        config = ("--config", str(site.config), "--out", str(tmp_path / "drift"), "--entities", "sale")
        assert main(JOB, [*config, "--settle", "0", *words]) == code
        said = capsys.readouterr()
        summary = json.loads(said.out.splitlines()[-1])
        if "report" not in summary:
            return {}, said.err
        report: dict[str, Any] = json.loads(Path(summary["report"]).with_name("report.json").read_bytes())
        return report, said.err

    return detect


def drifted(report: Mapping[str, Any]) -> dict[str, tuple[str, list[str]]]:
    """The drifted keys: kind and columns; of a row that one side lacks, none."""
    return {
        each["key"]: (each["kind"], sorted(each["columns"]) if each["kind"] == "changed" else [])
        for each in report["entities"]["sale"]["samples"]
    }


def test_a_copy_is_compared_value_by_value_and_is_said_not_to_be_exact(copy: DataFrame, detect: Detect) -> None:
    report, _ = detect(copy)
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
    report, _ = detect(changed, code=1)
    found = drifted(report)
    assert {key: columns for key, (kind, columns) in found.items() if kind == "changed"} == {
        '["1","1"]': ["price"],
        '["0","2"]': ["ratio"],
        '["1","3"]': ["at"],
        '["0","4"]': ["open"],
        '["0","6"]': ["doc"],
    }
    assert {key: kind for key, (kind, _) in found.items() if kind != "changed"} == {
        '["1","11"]': "extra",
        '["0","12"]': "extra",
        '["0","112"]': "missing",
    }


LAGGING = """(
    SELECT CASE id WHEN 12 THEN 112 ELSE id END AS id, shop, CASE id WHEN 1 THEN '' ELSE note END AS note, price, ratio,
        CAST(CASE WHEN id = 5 AND nextval('looks') < 3 THEN 0 ELSE amount END AS numeric(12,2)) AS amount,
        at, local, day, open, raw,
        CASE id WHEN 6 THEN '{"a": null, "b": 1.5}' ELSE doc::text END AS doc, uid::text
    FROM sale WHERE id <> 11
) AS copy"""
"""The table with drift in it; row 5 is as it should be from the third look on."""


def test_a_table_over_jdbc_is_looked_at_again_once_it_has_settled(site: Site, detect: Detect) -> None:
    fetched("jars")
    site.sql("CREATE SEQUENCE looks")
    server = conninfo_to_dict(site.dsn)
    url = f"jdbc:postgresql://{server['host']}:{server['port']}/{server['dbname']}?user={server['user']}"
    options = {"url": url, "dbtable": LAGGING, "preferTimestampNTZ": "true"}
    _, told = detect({**options, "url": url.replace("postgresql", "nothing")}, code=2)
    assert "no driver for this JDBC url" in told
    report, _ = detect(options, "--settle", "0.1", code=1)
    assert (report["exact"], report["source"]["kind"]) == (False, "jdbc")
    assert "no snapshot" in report["why"]
    assert drifted(report) == {
        '["1","1"]': ("changed", ["note"]),
        '["0","6"]': ("changed", ["doc"]),
        '["1","11"]': ("extra", []),
        '["0","12"]': ("extra", []),
        '["0","112"]': ("missing", []),
    }
    assert site.sql("SELECT last_value FROM looks")[0][0] >= 3


def test_a_key_that_is_written_to_meanwhile_is_left_out(
    copy: DataFrame, site: Site, detect: Detect, tmp_path: Path
) -> None:
    own = Site(site.dsn, tmp_path)
    own.configure(ENTITIES)
    shutil.copytree(site.log, own.log)
    row = latest(own.log, "sale")["sale", '["1","3"]']
    meanwhile = {**row, "committed_at": datetime.now(UTC) + timedelta(days=1)}
    rewrite(own.log, {("sale", row["key"]): last_only(row["position"], lambda _: [meanwhile])})
    changed = copy.withColumn("note", F.when(F.col("id").isin(3, 5), F.lit("another")).otherwise(F.col("note")))
    report, _ = detect(changed, code=1, site=own)
    assert drifted(report) == {'["1","5"]': ("changed", ["note"])}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("id, shop", "--source has no column note of sale"),
        ("*, CAST(amount AS double) AS cast", "column amount of sale: double cannot give what the changelog holds"),
    ],
)
def test_what_would_lose_something_is_refused_by_name(copy: DataFrame, detect: Detect, columns: str, said: str) -> None:
    frame = copy.selectExpr(*columns.split(", "))
    if "cast" in frame.columns:
        frame = frame.drop("amount").withColumnRenamed("cast", "amount")
    _, told = detect(frame, code=2)
    [line] = told.splitlines()
    assert said in line


def test_it_is_of_one_entity_and_repairs_nothing(
    site: Site, capsys: pytest.CaptureFixture[str], spark: SparkSession
) -> None:
    config = ["--config", str(site.config), "--source", "parquet"]
    for words in ([], ["--entities", "a", "b"], ["--entities", "sale", "--repair"]):
        assert main(JOB, [*config, *words]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
