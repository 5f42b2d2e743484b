"""Opens the engine over Kafka: finds the topics, claims the folder, and starts Java and Kafka Streams."""

import os
import ssl
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from changelog.connectors.config import Config, KafkaConfig, ServeConfig
from changelog.connectors.java.program import find_java
from changelog.connectors.kafka.java_client import java_options
from changelog.connectors.kafka.topic_ids import read_cluster_id
from changelog.connectors.permissions import DATA_FOLDER, make_folder
from changelog.connectors.views.streams import jars, java
from changelog.connectors.views.streams.application import Application, name_of
from changelog.connectors.views.streams.engine import StreamsEngine
from changelog.connectors.views.streams.folder import Claim, Owner, claimed
from changelog.connectors.views.streams.partitions import OtherInstances, OwnPartitions, Partitions
from changelog.connectors.views.streams.progress import TablesProgress
from changelog.connectors.views.streams.tables import KafkaTables, TablesSettings, changelog_of
from changelog.connectors.views.streams.topics import ServedTopic, ServedTopics, ensure_changelog, served_topics
from changelog.connectors.web.serving import bad_tls_files
from changelog.connectors.wiring import kafka
from changelog.connectors.wiring.sinks import read_versions, refuse_other_envelope
from changelog.envelope.service_choice import ALL_SERVICES, ServiceChoice

BY_SERVICE: Final = "by-service"
"""A folder inside the `path` of [serve.streams]. It has a folder for each application that ignores the changes of some
services.
"""


def open_engine(
    config: Config,
    sink: KafkaConfig,
    declared: Collection[tuple[str, ServiceChoice]],
    environment: Mapping[str, str] = os.environ,
) -> StreamsEngine:
    """Returns the engine for the `declared` entities, or for all entities if none is declared. Each declared entity
    comes with the choice of the services whose changes count.

    The tables are restored in the background. Raises ChangelogError: USAGE if messages are in another envelope;
    PRECONDITION if Java, its jars or the changelog are missing, if messages can be lost, or if the rows of an entity
    cannot be chosen by service; and the errors of `claimed` and of Kafka.
    """
    refuse_other_envelope(config, "`changelog views serve`")
    others = other_instances(config.serve)
    jars_folder, java_program = jars.find(config.serve.streams.jars, environment), find_java()
    log = kafka.open_log(config, sink)
    topics = served_topics(kafka.client(sink).admin(), log, config.prefix, {entity for entity, _ in declared})
    columns = {version.entity: version.columns for version in read_versions(log)}
    whole = {
        entity: served
        for entity, served in topics.entities.items()
        if not declared or (entity, ALL_SERVICES) in declared
    }
    choices = sorted((entity, services) for entity, services in declared if services.names)
    with ExitStack() as opened:
        opening = _Opening(config, sink, others, opened)
        main = opening.open_main(replace(topics, entities=whole), java_program, jars_folder)
        names = {
            (entity, services): name_of(
                entity, topics.entities[entity], topics.ids[topics.entities[entity].name], services
            )
            for entity, services in choices
        }
        applications = {
            name: opening.open_by_service(name, entity, services, topics.entities[entity], main.tables)
            for (entity, services), name in names.items()
        }
        return StreamsEngine(
            main,
            opening.codec,
            by_service=applications,
            names=names,
            columns=columns,
            where=log.where,
            close=opened.pop_all().close,
        )


class _Opening:
    """Opens applications, which end when `opened` is closed. `others` reads partitions of other instances; it is None
    if there are no other instances.
    """

    def __init__(self, config: Config, sink: KafkaConfig, others: OtherInstances | None, opened: ExitStack) -> None:
        self._config, self._sink, self._opened = config, sink, opened
        self._settings = config.serve.streams
        self._application = self._settings.application or f"{config.name}-views"
        self._client, self.codec = kafka.client(sink), kafka.values(config, sink)
        self._options = java_options(sink.client)
        self._others = others
        self._cluster = read_cluster_id(self._client.admin()) if self._settings.store == "rocksdb" else ""

    def open_main(self, topics: ServedTopics, java_program: str, jars_folder: Path) -> Application:
        """Starts Java and the main application. The application has the table of checkpoints, and a table for each
        entity in `topics`. In these tables, the changes of all services count.
        """
        ids = {name: topics.ids[name] for name in sorted(topics.names().values())}
        claim = self._claim(self._settings.path, self._application, ids, topics.tombstones_s)
        libraries = None if claim is None else claim.libraries
        java.start(
            java_program,
            jars_folder,
            heap_mib=self._settings.heap_mib,
            has_rows=self._settings.store != "rocksdb",
            libraries=libraries,
        )
        tables = TablesSettings(
            **self._shared(self._application, claim),
            topics=in_order(topics.names(), tuple(ids) if claim is None else claim.topics),
            small_tables=frozenset(topics.others),
        )
        return self._open(tables, topics.entities, claim, None)

    def open_by_service(
        self, name: str, entity: str, services: ServiceChoice, served: ServedTopic, checkpoints: KafkaTables
    ) -> Application:
        """Starts the application that has the rows of one entity without the changes that `services` leaves out."""
        application = f"{self._application}.{name}"
        changelog = changelog_of(application, entity)
        sink, folder = self._sink, self._settings.path / BY_SERVICE
        id_, tombstones_s = ensure_changelog(
            self._client, changelog, served, create=sink.create_topics, replication_factor=sink.replication_factor
        )
        if self._settings.store == "rocksdb":
            make_folder(folder, DATA_FOLDER)
        claim = self._claim(folder / name, application, {changelog: id_}, tombstones_s)
        tables = TablesSettings(**self._shared(application, claim), topics={entity: served.name}, services=services)
        return self._open(tables, {entity: served}, claim, checkpoints, name)

    def _claim(self, path: Path, application: str, ids: Mapping[str, str], tombstones_s: float) -> Claim | None:
        """Claims the folder of an application; returns None if its stores are in memory."""
        if self._settings.store != "rocksdb":
            return None
        owner = Owner(application=application, cluster=self._cluster, topics=ids, tombstones_s=tombstones_s)
        return self._opened.enter_context(claimed(path, owner))

    def _shared(self, application: str, claim: Claim | None) -> dict[str, Any]:
        return {
            "bootstrap_servers": self._sink.bootstrap_servers,
            "options": self._options,
            "application": application,
            "folder": None if claim is None else claim.stores,
            "advertised": self._settings.advertised,
            "session_s": self._settings.session_seconds,
            "standbys": self._settings.standbys,
            "keys_max": self._settings.keys_max,
        }

    def _open(
        self,
        settings: TablesSettings,
        topics: Mapping[str, ServedTopic],
        claim: Claim | None,
        checkpoints: KafkaTables | None,
        name: str = "",
    ) -> Application:
        tables = KafkaTables(settings)
        with ExitStack() as until_followed:
            until_followed.callback(tables.close)
            progress = TablesProgress(
                tables,
                self._client,
                self.codec,
                name=self._config.name,
                prefix=self._config.prefix,
                application=settings.application,
                topics=topics,
                checkpoints=checkpoints or tables,
                on_complete=_nothing if claim is None else claim.running,
            )
            until_followed.pop_all()
        self._opened.callback(_close, tables, progress, claim)
        partitions = Partitions(tables, progress.standby_reached, self._others, name)
        self._opened.callback(partitions.close)
        return Application(
            tables=tables,
            partitions=partitions,
            own_partitions=OwnPartitions(tables),
            progress=progress,
            topics=topics,
            keys_max=settings.keys_max,
            store_bytes=_no_bytes if claim is None else claim.size,
        )


def _close(tables: KafkaTables, progress: TablesProgress, claim: Claim | None) -> None:
    progress.close()
    complete_s = progress.complete_s()
    if tables.close() and claim is not None and complete_s is not None:
        claim.stored(complete_s)


def other_instances(settings: ServeConfig) -> OtherInstances | None:
    """Returns the client for other instances; None if there are no other instances. The client uses TLS if this
    instance does.

    Raises ChangelogError (USAGE) if the files for TLS cannot be used.
    """
    token, certificate = settings.streams.instance_token, settings.tls_certificate
    if token is None:
        return None
    if certificate is None:
        return OtherInstances(token)
    tls = ssl.create_default_context()
    # Our own certificate is trusted although its authority is unknown here.
    tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        tls.load_verify_locations(certificate)
        if settings.tls_client_ca is not None:
            tls.load_verify_locations(settings.tls_client_ca)
        tls.load_cert_chain(certificate, settings.tls_key)
    except OSError as error:
        raise bad_tls_files(error, "serve") from error
    return OtherInstances(token, tls)


def _no_bytes() -> int:
    """Returns the size on disk of stores in memory: 0."""
    return 0


def _nothing(_complete_s: float) -> None:
    """Does nothing. Stores in memory have no folder, so `Claim.running` has nowhere to write the time."""


def in_order(tables: Mapping[str, str], topics: Sequence[str]) -> Mapping[str, str]:
    """Sorts `tables`, which maps each table to its topic, by the order of the topics in `topics`."""
    return dict(sorted(tables.items(), key=lambda table: topics.index(table[1])))
