"""What is said of schema files and of what came before them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from changelog.connectors.schema_files.files import Contract
from changelog.connectors.schema_files.history import Earlier, Past
from changelog.schemas.compatibility import Mode, Problem, problems

COMPATIBILITY = "compatibility"
"""The property by which a file chooses its mode."""

DEFAULT_MODE = Mode.FULL_TRANSITIVE

State = Literal["new", "unchanged", "compatible", "incompatible", "removed", "invalid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One reason why a file may not stay as it is; `text` is the whole sentence.

    `path` is a pointer into the schema, `line` that of the file. `against` are the labels of versions that it runs
    against, and `breaks` whom that breaks. `strict`: Avro's own rules would let it pass.
    """

    rule: str
    path: str
    line: int
    text: str
    hint: str = ""
    breaks: str = ""
    against: tuple[str, ...] = ()
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is said of one file; `versions` are those it was compared with, each with where it is from."""

    file: str
    subject: str
    state: State
    mode: Mode | None = None
    versions: tuple[tuple[str, str], ...] = ()
    findings: tuple[Finding, ...] = ()


def verdicts(contracts: Sequence[Contract], earlier: Earlier, mode: Mode) -> list[Verdict]:
    """A verdict for each file, and for each that is gone; `mode` is for files that choose none."""
    found = [judge(contract, earlier.pasts.get(contract.file), mode) for contract in contracts]
    return [*found, *(removed(contract, mode) for contract in earlier.removed)]


def judge(contract: Contract, past: Past | None, mode: Mode) -> Verdict:
    """The verdict on a file; without a past it is compared with nothing."""
    if contract.rule:
        return _invalid(contract, contract.rule, contract.path, contract.trouble)
    try:
        mode = _mode(contract, mode)
    except ValueError:
        return _invalid(contract, "UNKNOWN_MODE", "/", f"has a {COMPATIBILITY} that is none of {', '.join(Mode)}")
    if past is None:
        return Verdict(file=contract.file, subject=contract.subject, state="new", mode=mode)
    found = problems(past.schema, [(version.label, version.schema) for version in past.versions], mode)
    findings = tuple(_grouped(contract, past, found, mode))
    state: State = "compatible"
    if findings:
        state = "incompatible"
    elif not past.versions:
        state = "new"
    elif past.versions[-1].schema == past.schema:
        state = "unchanged"
    return Verdict(
        file=contract.file,
        subject=contract.subject,
        state=state,
        mode=mode,
        versions=tuple((version.label, version.where) for version in past.versions),
        findings=findings,
    )


def removed(contract: Contract, mode: Mode) -> Verdict:
    """The verdict on a subject that has no file now. It may go where its last version promised nothing (NONE)."""
    try:
        mode = _mode(contract, mode)
    except ValueError:
        mode = DEFAULT_MODE
    finding = Finding(
        rule="SUBJECT_REMOVED",
        path="/",
        line=1,
        text=f"{contract.subject} has no schema any more: whoever reads it breaks",
        hint=f'keep the file; to end it, first give it "{COMPATIBILITY}": "NONE", and wait until nobody reads it',
    )
    return Verdict(
        file=contract.file,
        subject=contract.subject,
        state="removed",
        mode=mode,
        findings=() if mode is Mode.NONE else (finding,),
    )


def _mode(contract: Contract, mode: Mode) -> Mode:
    chosen = contract.schema.get(COMPATIBILITY) if isinstance(contract.schema, dict) else None
    return mode if chosen is None else Mode(chosen)


def _invalid(contract: Contract, rule: str, path: str, trouble: str) -> Verdict:
    finding = Finding(rule=rule, path=path, line=contract.line(path), text=trouble)
    return Verdict(file=contract.file, subject=contract.subject, state="invalid", findings=(finding,))


def _grouped(contract: Contract, past: Past, found: Sequence[Problem], mode: Mode) -> Iterator[Finding]:
    """A finding for what is the same with several versions."""
    groups: dict[tuple[str, ...], list[Problem]] = {}
    for problem in found:
        text = problem.text.replace(problem.against, "") if problem.against else problem.text
        groups.setdefault((problem.rule, problem.path, problem.breaks, text, problem.hint), []).append(problem)
    for group in groups.values():
        labels = tuple(dict.fromkeys(problem.against for problem in group if problem.against))
        last = group[-1]
        yield Finding(
            rule=last.rule,
            path=last.path,
            line=contract.line(last.path.removeprefix(past.at)),
            text=_sentence(last, past.label, labels, mode),
            hint=last.hint,
            breaks=last.breaks,
            against=labels,
            strict=last.strict,
        )


def _sentence(problem: Problem, label: str, labels: Sequence[str], mode: Mode) -> str:
    text = problem.text.replace("the new schema", label)
    if problem.strict or not labels:
        return f"{text} ({mode})"
    earlier = labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"
    if problem.breaks == "new readers":
        return f"{label} cannot read {earlier} data ({mode}): new readers break: {text}"
    return f"{earlier} cannot read {label} data ({mode}): old readers break: {text}"
