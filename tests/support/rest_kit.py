"""Apache Iceberg's REST compatibility kit and its reference server, from Maven."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

_POM: Final = Path(__file__).with_suffix(".xml")


def class_path(folder: Path) -> str:
    """Return the class path of the kit; Maven fetches what is missing, and writes the path into a folder."""
    jars = folder / "jars"
    resolve = ["mvn", "-q", "-B", "-f", str(_POM), "dependency:build-classpath", f"-Dmdep.outputFile={jars}"]
    subprocess.run(resolve, check=True, timeout=900)
    return jars.read_text()
