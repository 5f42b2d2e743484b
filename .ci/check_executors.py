"""Checks what Spark ships to its workers: only functions of modules that the import rules name as executor code.

The contract EXECUTORS in pyproject.toml says what those modules may import of `connectors`. This check makes it
complete: each function that a job hands to `mapInArrow`, `udf` and their like is defined in one of them, and they
import no other module of `spark_jobs`.

Exits 1 with one line for each thing that is wrong.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

JOBS = "changelog.spark_jobs"
EXECUTORS = "executors import the envelope, the schemas, the capture core, and one scan of each source"
SHIPS = frozenset(
    {
        *("mapInArrow", "mapInPandas", "applyInArrow", "applyInPandas", "mapPartitions", "mapPartitionsWithIndex"),
        *("foreach", "foreachPartition", "udf", "pandas_udf", "arrow_udf", "udtf"),
    }
)
"""Calls whose first argument is run by workers."""


def main() -> int:
    """Prints what is wrong; gives the exit code."""
    contracts = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (listed,) = (set(contract["source_modules"]) for contract in contracts if contract["name"] == EXECUTORS)
    problems = [
        problem for file in sorted(Path(*JOBS.split(".")).rglob("*.py")) for problem in Module(file).problems(listed)
    ]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


class Module:
    """One file: what its names stand for."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.name = ".".join(file.with_suffix("").parts)
        self._tree = ast.parse(file.read_text("utf-8"), str(file))
        self._imported: dict[str, str] = {}
        for node in ast.walk(self._tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    self._imported[alias.asname or alias.name] = _module_of(node.module, alias.name)

    def problems(self, listed: set[str]) -> Iterator[str]:
        """What is wrong with it, where `listed` are the modules of executor code."""
        for line, module in self._shipped():
            if module not in listed:
                yield f"{self.file}:{line}: ships a function of {module}, which is not listed as executor code"
        if self.name in listed:
            for module in sorted({name for name in self._imported.values() if name.startswith(f"{JOBS}.")} - listed):
                yield f"{self.file}: runs on executors and imports {module}, which is not listed as such"

    def _shipped(self) -> Iterator[tuple[int, str]]:
        """The lines that ship functions, and the module that each is defined in."""
        for scope in ast.walk(self._tree):
            if isinstance(scope, ast.FunctionDef):
                assigned = {
                    target.id: node.value
                    for node in ast.walk(scope)
                    if isinstance(node, ast.Assign)
                    for target in node.targets
                    if isinstance(target, ast.Name)
                }
                for node in ast.walk(scope):
                    if isinstance(node, ast.Call) and node.args and _called(node) in SHIPS:
                        yield node.lineno, self._origin(node.args[0], assigned)

    def _origin(self, function: ast.expr, assigned: dict[str, ast.expr]) -> str:
        """The module that an expression's function is of: through `partial`, factories and assignments."""
        match function:
            case ast.Call(func=ast.Name(id="partial")):
                return self._origin(function.args[0], assigned)
            case ast.Call(func=called):
                return self._origin(called, assigned)
            case ast.Name(id=name) if name in assigned:
                return self._origin(assigned[name], {})
            case ast.Name(id=name) | ast.Attribute(value=ast.Name(id=name)):
                return self._imported.get(name, self.name)
        return self.name


def _module_of(module: str, name: str) -> str:
    """The module that `from module import name` is about: `name` is one itself, or is defined in `module`."""
    file = Path(*module.split("."), name)
    return f"{module}.{name}" if file.is_dir() or file.with_suffix(".py").exists() else module


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


if __name__ == "__main__":
    sys.exit(main())
