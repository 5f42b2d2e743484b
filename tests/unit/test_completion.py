"""Tests that the scripts of `changelog --completion` complete words in the shells for which they are made."""

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
"""The words that are typed after `changelog`, and the possible completions of the last word."""

BEGIN = {
    "bash": "PS1='ready> '; source ./script; echo loaded\n",
    "zsh": "PS1='ready> '; autoload -U compinit; compinit -u -D; eval \"$(cat script)\"; echo loaded\n",
}
ALONE = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a configuration. Shells get it as HOME, so that they do not read a user's settings."""
    (tmp_path / "changelog.toml").write_text(CONFIG)
    return tmp_path


def script(capsys: pytest.CaptureFixture[str], shell: str) -> str:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--completion", shell])
    assert caught.value.code == 0
    return capsys.readouterr().out


def installed(shell: str) -> str:
    program = shutil.which(shell)
    if program is None:
        missing(f"{shell} is missing: apt-get install {shell}")
    return program


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize(("typed", "expected"), CASES)
def test_bash_and_zsh_complete_words_on_a_terminal(
    capsys: pytest.CaptureFixture[str], folder: Path, shell: str, typed: list[str], expected: list[str]
) -> None:
    """After the first tab, the shell inserts the beginning that all completions share. If there are several
    completions, further tabs make the shell list them.
    """
    (folder / "script").write_text(script(capsys, shell))
    output = _on_a_terminal(
        [installed(shell), *ALONE[shell]], folder, BEGIN[shell], f"changelog {' '.join(typed)}\t\t\t", expected
    )
    assert all(word in output for word in expected), output


@pytest.mark.parametrize(("typed", "expected"), [case for case in CASES if case[1] != ["changelog.toml"]])
def test_fish_completes_words(
    capsys: pytest.CaptureFixture[str], folder: Path, typed: list[str], expected: list[str]
) -> None:
    (folder / "script").write_text(script(capsys, "fish"))
    process = subprocess.run(
        [installed("fish"), "--no-config", "-c", f"source ./script; complete -C 'changelog {' '.join(typed)}'"],
        cwd=folder,
        env={**os.environ, "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.partition("\t")[0] for line in process.stdout.splitlines()] == expected


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--completion", "tcsh"])
    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        "changelog: argument --completion: there is no script for tcsh; choose from bash, zsh, fish; "
        "see `changelog --help`\n"
    )


def test_other_commands_do_not_import_shtab() -> None:
    command = "import sys; from changelog.connectors import cli; cli.main(['history', 'order', '1', '-c', 'none'])"
    program = f"{command}; sys.exit(any(name.startswith('shtab') for name in sys.modules))"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def _on_a_terminal(program: list[str], folder: Path, begin: str, typed: str, words: Sequence[str]) -> str:
    """Types `begin` and `typed` into an interactive shell. Waits until the shell's output has all of `words`, and
    returns the output.
    """
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
    output, deadline = "", time.monotonic() + PATIENCE_S
    while not all(word in output for word in words) and time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.1)[0]:
            output += os.read(terminal, 65536).decode("utf-8", "replace")
    return output
