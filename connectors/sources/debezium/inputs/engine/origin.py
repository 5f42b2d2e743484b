"""Implements `changelog.connectors.sources.debezium.inputs.ConfiguredInput` for a Debezium that the service runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from changelog.connectors.debezium import jars
from changelog.connectors.debezium.launch import Launch
from changelog.connectors.findings import Finding, fail, ok
from changelog.connectors.java.program import find_java
from changelog.connectors.sources import Hold, Remnant
from changelog.connectors.sources.debezium.inputs import AfterGap, Declared
from changelog.connectors.sources.debezium.inputs.engine.publication import PUBLISHED, Publication
from changelog.connectors.sources.debezium.inputs.engine.reader import EngineInput
from changelog.connectors.sources.debezium.inputs.engine.settings import MODE, EngineSettings
from changelog.connectors.sources.debezium.tables import Sampled, Translate, sampled
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import ChangelogError, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOrigin:
    """Debezium with these settings. `environment` says where installed jars are.

    `publication` is the PostgreSQL publication that Debezium reads; None if it reads none.
    """

    settings: EngineSettings
    environment: Mapping[str, str]
    publication: Publication | None = None

    name = "debezium"
    samples = False

    def open(self, checkpoint: Checkpoint | None) -> EngineInput:
        """See `ConfiguredInput.open`."""
        source = {} if checkpoint is None else checkpoint.source
        identity, progress = dict(source.get("identity") or {}), source.get("progress")
        launch = self._launch()
        if self.publication is not None and self.publication.is_ours:
            identity[PUBLISHED] = self.publication.made(identity.get(PUBLISHED), continues=bool(progress))
            launch = replace(launch, properties={**launch.properties, MODE: "disabled"})
        return EngineInput(launch, identity, progress)

    def _launch(self) -> Launch:
        settings = self.settings
        launch = Launch(properties=settings.properties, jars=Path(), heap_mib=settings.heap_mib, log_level="WARNING")
        launch.configuration()  # reports a mistake in the configuration before missing jars
        folder = jars.find(settings.properties["connector.class"], settings.jars, self.environment)
        return replace(launch, jars=folder)

    def sampled(self, translate: Translate, declared: Declared) -> Sampled:
        """See `ConfiguredInput.sampled`: the tables that the configuration names."""
        return sampled({}, translate, counts={}, partitions={}, declared=declared)

    def left(self, checkpoint: Checkpoint) -> int:  # noqa: ARG002 - only a running process knows
        """See `ConfiguredInput.left`: always 0, because the end of the database's log is unknown here."""
        return 0

    def is_lost(self, checkpoint: Checkpoint) -> bool:  # noqa: ARG002
        """See `ConfiguredInput.is_lost`: always False, because only Debezium finds this out, when it starts."""
        return False

    def findings(self, checkpoint: Checkpoint | None) -> Sequence[Finding]:
        """See `ConfiguredInput.findings`."""
        findings = [_tried("java", lambda: f"is {find_java()}"), _tried("debezium", self._described)]
        if self.publication is None:
            return findings
        source = {} if checkpoint is None else checkpoint.source
        published = (source.get("identity") or {}).get(PUBLISHED)
        return [*findings, *self.publication.findings(published, continues=bool(source.get("progress")))]

    def _described(self) -> str:
        command = self._launch().command("java")
        count = len(command[command.index("-cp") + 1].split(":"))
        return f"has {count} jars, and Debezium checks the rest at its start"

    def after_gap(self, checkpoint: Checkpoint | None, *, again: bool) -> AfterGap:  # noqa: ARG002
        """See `ConfiguredInput.after_gap`: the result has no offsets, so Debezium begins with the snapshot that its
        snapshot.mode asks for.
        """
        return AfterGap(identity={}, progress={})

    def hold(self) -> Hold:
        """See `ConfiguredInput.hold`: what Debezium has created in the database, such as a replication slot."""
        return Hold(
            kind="debezium",
            name=self.settings.properties["topic.prefix"],
            reader=None,
            condition="kept",
            is_lost=False,
            confirmed="",
            nbytes=None,
            xids=None,
        )

    def facts(self, checkpoint: Checkpoint | None) -> Sequence[tuple[str, str]]:
        """See `ConfiguredInput.facts`."""
        facts = [("debezium", "begins with a snapshot, as its snapshot.mode says, because it receives no offset")]
        if checkpoint is None:
            return facts
        return [
            ("", f"has the events up to {' '.join(map(str, checkpoint.source.get('progress', {}).values()))}"),
            *facts,
        ]

    def remnants(self) -> Sequence[Remnant]:
        """See `ConfiguredInput.remnants`: the publication. Debezium itself creates the other things, such as a
        replication slot.
        """
        if self.publication is None or not self.publication.is_ours:
            return ()
        return [Remnant(kind="publication", name=self.publication.name, exists=self.publication.exists())]

    def drop(self, kind: str) -> None:
        """See `ConfiguredInput.drop`."""
        if kind != "publication" or self.publication is None:
            raise ChangelogError(Kind.USAGE, f"the service creates no {kind}; drop Debezium's own objects by hand")
        self.publication.drop()


def _tried(name: str, describe: Callable[[], str]) -> Finding:
    try:
        return ok(name, describe())
    except ChangelogError as error:
        return fail(name, error.message, error.hint or "see docs/how-to/debezium-engine.md")
