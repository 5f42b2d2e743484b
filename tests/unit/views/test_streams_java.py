"""Starts Java in a process of its own, because a process has only one virtual machine."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import gc
import sys
from pathlib import Path
from changelog.connectors.java.program import find_java
from changelog.connectors.views.streams import java
before = len(gc.get_objects())
java.start(find_java(), Path(sys.argv[1]), heap_mib=64)
print(gc.get_freeze_count() >= before)
"""


def test_collections_of_java_do_not_go_through_the_objects_that_exist_before_its_start(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "True\n"
