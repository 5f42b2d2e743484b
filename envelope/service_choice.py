"""Defines the rule by which views and jobs choose changes: by the service that made a change."""

from dataclasses import dataclass

from changelog.envelope.errors import ChangelogError, Kind


@dataclass(frozen=True, slots=True, order=True)
class ServiceChoice:
    """Chooses changes by the name of the service in their stamps. By default, all changes are included.

    If `keep` names services, only their changes are included. Otherwise, all changes are included, except those by the
    services in `drop`. A change that is not included is ignored: its row keeps the state that it had before. If a
    truncate is not included, no row is removed.
    """

    keep: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The services in `keep`, or those in `drop` if `keep` is empty."""
        return self.keep or self.drop

    @property
    def is_of_kept(self) -> bool:
        """Whether `names` are the services in `keep`."""
        return bool(self.keep)

    def includes(self, service: str) -> bool:
        """Returns whether the changes by a service are included."""
        return (service in self.names) == self.is_of_kept

    def contradiction(self) -> str | None:
        """Returns an error text if a service is both kept and dropped; otherwise None."""
        return "a service is both kept and dropped" if set(self.keep) & set(self.drop) else None


ALL_SERVICES = ServiceChoice()
"""The choice that includes all changes."""


def refuse_contradiction(choice: ServiceChoice) -> None:
    """Raises ChangelogError (USAGE) if a service is both kept and dropped."""
    if contradiction := choice.contradiction():
        raise ChangelogError(Kind.USAGE, contradiction, hint="leave one out")
