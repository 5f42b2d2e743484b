"""Opens the engine over Kafka: finds the topics, claims the folder, and starts Java and Kafka Streams."""

import os
import ssl
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack

from changelog.connectors.config import Config, KafkaConfig, ServeConfig
from changelog.connectors.java.program import find_java
from changelog.connectors.kafka.java_client import java_options
from changelog.connectors.kafka.topic_ids import read_cluster_id
from changelog.connectors.views.streams import jars, java
from changelog.connectors.views.streams.engine import StreamsEngine
from changelog.connectors.views.streams.folder import Claim, Owner, claimed
from changelog.connectors.views.streams.partitions import OtherInstances, Partitions
from changelog.connectors.views.streams.progress import TablesProgress
from changelog.connectors.views.streams.tables import KafkaTables, TablesSettings
from changelog.connectors.views.streams.topics import served_topics
from changelog.connectors.web.serving import bad_tls_files
from changelog.connectors.wiring import kafka
from changelog.connectors.wiring.sinks import read_versions, refuse_other_envelope


def open_engine(
    config: Config, sink: KafkaConfig, declared: Collection[str], environment: Mapping[str, str] = os.environ
) -> StreamsEngine:
    """Returns the engine for the `declared` entities, or for all entities if there are none.

    The tables are restored in the background. Raises ChangelogError: USAGE if messages are in another envelope;
    PRECONDITION if Java, its jars or the changelog are missing, or if messages can be lost; and the errors of
    `claimed` and of Kafka.
    """
    refuse_other_envelope(config, "`changelog views serve`")
    settings = config.serve.streams
    application = settings.application or f"{config.name}-views"
    others = other_instances(config.serve)
    jars_folder, java_program = jars.find(settings.jars, environment), find_java()
    client, codec, log = kafka.client(sink), kafka.values(config, sink), kafka.open_log(config, sink)
    options = java_options(sink.client)
    admin = client.admin()
    topics = served_topics(admin, log, config.prefix, declared)
    columns = {version.entity: version.columns for version in read_versions(log)}
    with ExitStack() as opened:
        claim: Claim | None = None
        if settings.store == "rocksdb":
            owner = Owner(
                application=application,
                cluster=read_cluster_id(admin),
                topics=topics.ids,
                tombstones_s=topics.tombstones_s,
            )
            claim = opened.enter_context(claimed(settings.path, owner))
        libraries = None if claim is None else claim.libraries
        java.start(java_program, jars_folder, heap_mib=settings.heap_mib, libraries=libraries)
        tables = KafkaTables(
            TablesSettings(
                bootstrap_servers=sink.bootstrap_servers,
                options=options,
                application=application,
                folder=None if claim is None else claim.stores,
                topics=in_order(topics.names(), tuple(topics.ids) if claim is None else claim.topics),
                small_tables=frozenset(topics.others),
                advertised=settings.advertised,
                session_s=settings.session_seconds,
                standbys=settings.standbys,
            )
        )
        until_followed = opened.enter_context(ExitStack())
        until_followed.callback(tables.close)
        progress = TablesProgress(
            tables,
            client,
            codec,
            name=config.name,
            prefix=config.prefix,
            application=application,
            topics=topics.entities,
            on_complete=_nothing if claim is None else claim.running,
        )
        until_followed.pop_all()
        opened.callback(_close, tables, progress, claim)
        partitions = Partitions(tables, progress.standby_reached, others)
        opened.callback(partitions.close)
        return StreamsEngine(
            tables,
            partitions,
            progress,
            codec,
            topics=topics.entities,
            columns=columns,
            where=log.where,
            store_bytes=lambda: 0 if claim is None else claim.size(),
            close=opened.pop_all().close,
        )


def _close(tables: KafkaTables, progress: TablesProgress, claim: Claim | None) -> None:
    progress.close()
    complete_s = progress.complete_s()
    if tables.close() and claim is not None and complete_s is not None:
        claim.stored(complete_s)


def other_instances(settings: ServeConfig) -> OtherInstances | None:
    """Returns the client for other instances; None if there are none. It uses TLS if this instance does.

    Raises ChangelogError (USAGE) if the files for TLS cannot be used.
    """
    token, certificate = settings.streams.instance_token, settings.tls_certificate
    if token is None:
        return None
    if certificate is None:
        return OtherInstances(token)
    tls = ssl.create_default_context()
    tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # trusts our own certificate even if an authority has signed it
    try:
        tls.load_verify_locations(certificate)
        if settings.tls_client_ca is not None:
            tls.load_verify_locations(settings.tls_client_ca)
        tls.load_cert_chain(certificate, settings.tls_key)
    except OSError as error:
        raise bad_tls_files(error, "serve") from error
    return OtherInstances(token, tls)


def _nothing(_complete_s: float) -> None:
    """Does nothing: stores in memory have no folder that keeps the time."""


def in_order(tables: Mapping[str, str], topics: Sequence[str]) -> Mapping[str, str]:
    """Returns `tables`, each with its topic. They have the order that their topics have in `topics`."""
    return dict(sorted(tables.items(), key=lambda table: topics.index(table[1])))
