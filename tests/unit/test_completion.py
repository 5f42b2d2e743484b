"""The scripts of `changelog --completion`, in the shells that run them."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from changelog.connectors import cli
from tests.patience import PATIENCE_S
from tests.servers import missing

CONFIG = """
[entities.order]
table = "public.order"
[entities.order.mask]
note = "null"
[entities.order_line]
table = "public.order_line"
"""

CASES = [
    (["hist"], ["history"]),
    (["history", "--js"], ["--json"]),
    (["history", "ord"], ["order", "order_line"]),
    (["schemas", "ge"], ["generate"]),
    (["schemas", "generate", "--ou"], ["--out"]),
    (["check", "--config", "chang"], ["changelog.toml"]),
    (["init", "--sink", "ka"], ["kafka"]),
]
"""What is typed after `changelog`, and what its last word may become."""

BEGIN = {
    "bash": "PS1='ready> '; source ./script; echo loaded\n",
    "zsh": "PS1='ready> '; autoload -U compinit; compinit -u -D; eval \"$(cat script)\"; echo loaded\n",
}
ALONE = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a configuration is; HOME, too, so that no shell reads what a user has set."""
    (tmp_path / "changelog.toml").write_text(CONFIG)
    return tmp_path


def script(capsys: pytest.CaptureFixture[str], shell: str) -> str:
    with pytest.raises(SystemExit) as left:
        cli.main(["--completion", shell])
    assert left.value.code == 0
    return capsys.readouterr().out


def installed(shell: str) -> str:
    program = shutil.which(shell)
    if program is None:
        missing(f"{shell} is missing: apt-get install {shell}")
    return program


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize(("typed", "meant"), CASES)
def test_on_a_terminal(
    capsys: pytest.CaptureFixture[str], folder: Path, shell: str, typed: list[str], meant: list[str]
) -> None:
    """What is common to all is put in; they are listed if they are several."""
    (folder / "script").write_text(script(capsys, shell))
    said = _on_a_terminal(
        [installed(shell), *ALONE[shell]], folder, BEGIN[shell], f"changelog {' '.join(typed)}\t\t\t", meant
    )
    assert all(word in said for word in meant), said


@pytest.mark.parametrize(("typed", "meant"), [case for case in CASES if case[1] != ["changelog.toml"]])
def test_fish(capsys: pytest.CaptureFixture[str], folder: Path, typed: list[str], meant: list[str]) -> None:
    (folder / "script").write_text(script(capsys, "fish"))
    ran = subprocess.run(
        [installed("fish"), "--no-config", "-c", f"source ./script; complete -C 'changelog {' '.join(typed)}'"],
        cwd=folder,
        env={**os.environ, "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.partition("\t")[0] for line in ran.stdout.splitlines()] == meant


def test_a_shell_that_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["--completion", "tcsh"])
    assert left.value.code == 2
    assert capsys.readouterr().err == (
        "changelog: argument --completion: there is no script for tcsh; choose from bash, zsh, fish; "
        "see `changelog --help`\n"
    )


def test_no_other_command_line_loads_what_makes_the_scripts() -> None:
    look = "import sys; from changelog.connectors import cli; cli.main(['history', 'order', '1', '-c', 'none'])"
    asked = f"{look}; sys.exit(any(name.startswith('shtab') for name in sys.modules))"
    subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True)


def _on_a_terminal(program: list[str], folder: Path, begin: str, typed: str, words: Sequence[str]) -> str:
    """What an interactive shell shows after `begin` once `typed` is typed, until all the words are there."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(program[0], program, {**os.environ, "TERM": "dumb", "HOME": str(folder)})
    try:
        os.write(terminal, begin.encode())
        _read(terminal, ["\nloaded", "ready> "])
        os.write(terminal, typed.encode())
        return _read(terminal, words)
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)


def _read(terminal: int, words: Sequence[str]) -> str:
    said, deadline = "", time.monotonic() + PATIENCE_S
    while not all(word in said for word in words) and time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.1)[0]:
            said += os.read(terminal, 65536).decode("utf-8", "replace")
    return said
