"""Tests that this version of the service continues a changelog that an earlier version stored.

The earlier version, the last one without the folder `connectors/capture`, wrote `stored/changelog`. When it stopped, it
had read only a part of the table `photo`. It also had an unfinished repair: it still had to read the rows of two keys
of `item` again. The database cluster of that time no longer exists, so the service continues with another cluster.
"""

import shutil
from pathlib import Path

from changelog.connectors.capture.tables.repairs import Repairs
from tests.integration.site import Site

STORED = Path(__file__).parent / "stored" / "changelog"
SIGNAL = "f8c993e71622a3c1"

ENTITIES = """
[entities.item]
table = "public.item"
[entities.photo]
table = "public.photo"
"""


def test_the_service_finishes_the_reads_and_repairs_of_a_stored_changelog(database: str, tmp_path: Path) -> None:
    site = Site(database, tmp_path)
    site.sql(
        "CREATE TABLE item (id int PRIMARY KEY, name text, amount int)",
        "ALTER TABLE item REPLICA IDENTITY FULL",
        "INSERT INTO item SELECT n, 'item ' || n, n FROM generate_series(1, 50) AS n WHERE n <> 8",
        "UPDATE item SET amount = 700 WHERE id = 7",
        "CREATE TABLE photo (id int PRIMARY KEY, title text)",
        "INSERT INTO photo SELECT n, 'photo ' || n FROM generate_series(1, 1000) AS n",
    )
    site.configure(ENTITIES)
    shutil.copytree(STORED, site.log)
    before, checkpoint = site.messages(), site.checkpoint
    assert next(iter(checkpoint.windows["photo"]["leaves"].values()))["left"] == [[5, None]]
    assert Repairs.parse(checkpoint.repairs).to_json() == checkpoint.repairs
    assert "cluster" in site.refused()

    with site.running(accept_cluster=True) as service:
        service.until(lambda: site.is_read() and not Repairs.parse(site.checkpoint.repairs).open)
        site.sql("INSERT INTO item VALUES (51, 'item 51', 51)")
        service.until(lambda: "51" in site.state("item"))

    after = site.messages()
    assert after[: len(before)] == before
    positions = [message["value"]["provenance"]["source"]["position"] for message in after]
    assert positions == sorted(set(positions))
    assert ("read", "7") in site.ops("item")[sum(message["entity"] == "item" for message in before) :]
    assert Repairs.parse(site.checkpoint.repairs).ended[SIGNAL] == "done, 1 absent"
    for name in ("item", "photo"):
        assert site.state(name) == {str(row["id"]): row for (row,) in site.sql(f"SELECT to_json({name}) FROM {name}")}
