"""Defines the base class of the configuration's sections, and the types of the values: strings and bounded numbers."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from changelog.envelope.entity import RESERVED


def _entity_name(name: str) -> str:
    if name in RESERVED:
        raise ValueError(f"{name} is a reserved name")
    return name


Text = Annotated[str, StringConstraints(min_length=1)]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]+$")]
EntityName = Annotated[Name, AfterValidator(_entity_name)]
SlotName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,63}$")]
Prefix = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9._-]{1,150}$")]
Columns = Annotated[tuple[Text, ...], Field(min_length=1)]
CommitSeconds = Annotated[float, Field(gt=0, le=60)]
CommitBytes = Annotated[int, Field(ge=1 << 16, le=1 << 30)]
CommitRows = Annotated[int, Field(ge=1, le=10_000_000)]


class Section(BaseModel):
    """A section of the configuration file. It is frozen, and refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=False)
