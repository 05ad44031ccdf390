"""How large the fault tests are: bounded to a few minutes, or in full with TIDEGATE_FAULTS=long."""

import json
import os
from pathlib import Path
from typing import Any

# Read at import: a fixture clears the settings' prefix from the environment of every test.
LONG = os.environ.get("TIDEGATE_FAULTS") == "long"
_FIGURES = os.environ.get("TIDEGATE_FAULTS_FIGURES")


def scaled(short: int, long: int) -> int:
    """The number for this run."""
    return long if LONG else short


def figure(name: str, **values: Any) -> None:
    """Tell what was measured; TIDEGATE_FAULTS_FIGURES names a file that gets it too."""
    line = json.dumps({"figure": name, **values})
    print(line)
    if _FIGURES:
        with Path(_FIGURES).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
