"""Configures and runs services that start Debezium in a Java process of their own, for tests."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.integration.debezium.site import connector
from tests.integration.site import Site
from tests.servers import engine_jars

ENTITY = '[entities.orders]\ntable = "{table}"\nkey = ["id"]\n'


class InProcess(Site):
    """A service that runs Debezium with the given properties, and publishes one table as the entity `orders`."""

    def __init__(self, folder: Path, name: str, kind: str, properties: dict[str, str], jars: Path, table: str) -> None:
        self.name, self.folder = name, folder
        self.config, self.log = folder / "debezium.toml", folder / "log"
        lines = "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in properties.items())
        self.config.write_text(
            f'name = "{name}"\nservice = {{ listen = "127.0.0.1:0" }}\n'
            f'sink = {{ path = "log", commit_seconds = 0.05 }}\n'
            f'[source]\nkind = "debezium"\nconnector = "{kind}"\njars = {json.dumps(str(jars))}\nheap_mib = 256\n'
            f'[source.properties]\n{lines}[schemas]\non_incompatible = "publish"\n' + ENTITY.format(table=table),
            "utf-8",
        )

    def publish(self, count: int) -> None:
        """Runs the service until the changelog has `count` messages of the entity. Checks that it has no more."""
        with self.running() as service:
            service.until(lambda: len(self.messages("orders")) >= count)
        assert len(self.messages("orders")) == count


def over_postgres(database: str, folder: Path, properties: Mapping[str, str] = MappingProxyType({})) -> InProcess:
    """Returns a service that publishes the table `orders` of a PostgreSQL database.

    The section `[source.properties]` has the properties that `connector` returns, but not those that the service sets
    itself. `properties` are added to them, and replace those of the same name.
    """
    defaults = {"table.include.list", "publication.name", "publication.autocreate.mode", "plugin.name", "topic.prefix"}
    all_properties = {key: value for key, value in connector(database).items() if key not in defaults}
    all_properties.update(properties)
    site = InProcess(folder, "app", "postgresql", all_properties, engine_jars("postgres"), "public.orders")
    site.dsn = database
    return site


def create_orders(site: InProcess) -> None:
    """Creates the table `orders` with 40 rows."""
    site.sql(
        "CREATE TABLE orders (id int PRIMARY KEY, status text, amount numeric(10, 2))",
        "ALTER TABLE orders REPLICA IDENTITY FULL",
        "INSERT INTO orders SELECT n, 'NEW', n / 4.0 FROM generate_series(1, 40) n",
    )
