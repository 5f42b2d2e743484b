"""Checks that jobs send only functions of executor modules to Spark's workers.

Executor modules are those whose functions run on Spark's workers. A contract in pyproject.toml lists them, and says
which modules of `connectors` they may import; `EXECUTORS` is its name. This script checks two more rules. Each function
that a job passes to `mapInArrow`, `udf` and similar calls must be defined in an executor module. Of the modules in
`spark_jobs`, an executor module may import only executor modules.

Prints one line for each problem, and exits with 1 if there are problems.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

JOBS = "changelog.spark_jobs"
EXECUTORS = "executors import no connectors, except the types of a scan"
SHIPS = frozenset(
    {
        *("mapInArrow", "mapInPandas", "applyInArrow", "applyInPandas", "mapPartitions", "mapPartitionsWithIndex"),
        *("foreach", "foreachPartition", "udf", "pandas_udf", "arrow_udf", "udtf"),
    }
)
"""The names of functions and methods whose first argument is a function that workers run."""


def main() -> int:
    """Prints the problems, and returns the exit code."""
    contracts = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (executor_modules,) = (set(contract["source_modules"]) for contract in contracts if contract["name"] == EXECUTORS)
    problems = [
        problem
        for file in sorted(Path(*JOBS.split(".")).rglob("*.py"))
        for problem in Module(file).problems(executor_modules)
    ]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


class Module:
    """One Python file. For each name that it imports, `_imported` has the module that defines the name."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.name = ".".join(file.with_suffix("").parts)
        self._tree = ast.parse(file.read_text("utf-8"), str(file))
        self._imported: dict[str, str] = {}
        for node in ast.walk(self._tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    self._imported[alias.asname or alias.name] = _module_of(node.module, alias.name)

    def problems(self, executor_modules: set[str]) -> Iterator[str]:
        """Yields what is wrong in this file."""
        for line, module in self._shipped():
            if module not in executor_modules:
                yield f"{self.file}:{line}: ships a function of {module}, which is not listed as executor code"
        if self.name in executor_modules:
            job_modules = {name for name in self._imported.values() if name.startswith(f"{JOBS}.")}
            for module in sorted(job_modules - executor_modules):
                yield f"{self.file}: runs on executors and imports {module}, which is not listed as executor code"

    def _shipped(self) -> Iterator[tuple[int, str]]:
        """Yields the line of each call that sends a function to workers, and the module that defines this function."""
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
        """Returns the module that defines a function. The function may be given as a `partial`, as the result of
        another function, or as a variable to which one of these was assigned.
        """
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
    """Returns the module from which `from module import name` imports. If `name` is itself a module, this is
    `module.name`.
    """
    file = Path(*module.split("."), name)
    return f"{module}.{name}" if file.is_dir() or file.with_suffix(".py").exists() else module


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


if __name__ == "__main__":
    sys.exit(main())
