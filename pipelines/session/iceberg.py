"""What a Spark session needs to run Iceberg's procedures: its runtime and its extension, before the session starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

from trinitylake_core.errors import InvalidInput
from trinitylake_core.extras import install_command

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import SparkSession

TESTED: Final = "1.12.0"
"""The release of Iceberg that the tests run."""
PACKAGES: Final = "spark.jars.packages"
EXTENSIONS: Final = "spark.sql.extensions"
EXTENSION: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_SCALA: Final = {"3.5": "2.12", "4.0": "2.13", "4.1": "2.13"}
"""The Sparks for which Iceberg publishes a runtime, with the Scala of pyspark's own distribution."""
_RELEASE: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+")


def iceberg_settings(release: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a session with Iceberg's runtime, beside those that it has. Nothing is downloaded.

    Args:
        release: of Iceberg, such as ``1.12.0``.
        conf: further settings: packages and extensions in it stay.

    Raises:
        InvalidInput: Iceberg has no runtime for the Spark that is installed, or it is no release.
    """
    packages = [_artifact(release)]
    if conf.get(PACKAGES):
        packages.append(conf[PACKAGES])
    extensions = [EXTENSION]
    if conf.get(EXTENSIONS) and EXTENSION not in conf[EXTENSIONS]:
        extensions.append(conf[EXTENSIONS])
    return {PACKAGES: ",".join(packages), EXTENSIONS: ",".join(extensions)}


def _artifact(release: str) -> str:
    if not _RELEASE.fullmatch(release):
        raise InvalidInput(f"{release!r} is no release of Iceberg; name one such as {TESTED}")
    spark = _spark_release()
    if spark not in _SCALA:
        known = ", ".join(_SCALA)
        raise InvalidInput(
            f"Iceberg publishes no runtime for Spark {spark}, only for {known}: install one of them to run Iceberg's "
            "procedures, or leave iceberg out"
        )
    return f"org.apache.iceberg:iceberg-spark-runtime-{spark}_{_SCALA[spark]}:{release}"


def _spark_release() -> str:
    """Return the first two numbers of the installed pyspark, which is not imported for it."""
    try:
        return ".".join(version("pyspark").split(".")[:2])
    except PackageNotFoundError:
        raise InvalidInput(f"pyspark is not installed: {install_command('spark')}") from None


def refuse_session_without_iceberg(spark: SparkSession) -> None:
    """Refuse a session that started without Iceberg. Raises ``InvalidInput``, which names the two settings."""
    has_extension = EXTENSION in (spark.conf.get(EXTENSIONS, "") or "")
    if not has_extension or not _finds_runtime(spark):
        raise InvalidInput(how_to_get_iceberg(spark.version))


def how_to_get_iceberg(spark: str | None = None) -> str:
    """Return what is said of a session without Iceberg, for a release of Spark: by default the installed one."""
    if spark is None:
        release = _spark_release()
    else:
        release = ".".join(spark.split(".")[:2])
    scala = _SCALA.get(release, "2.13")
    return (
        "this Spark session has no Iceberg, which must be there before it starts. Set "
        f"{PACKAGES}=org.apache.iceberg:iceberg-spark-runtime-{release}_{scala}:{TESTED} and {EXTENSIONS}={EXTENSION} "
        "(--spark-conf NAME=VALUE; in lakehouses.yaml `spark: {iceberg: " + TESTED + "}`)"
    )


def _finds_runtime(spark: SparkSession) -> bool:
    """Whether Java finds Iceberg; a Spark Connect server is taken by its word, for its Java cannot be asked."""
    if ".connect." in type(spark).__module__:
        return True
    jvm: Any = spark._jvm  # noqa: SLF001 - no public way to ask
    found = jvm.org.apache.iceberg.spark.SparkCatalog
    return type(found).__name__ == "JavaClass"  # py4j takes a name that is no class for a package
