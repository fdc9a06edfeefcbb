"""Connectors that Spark downloads: the release of each one that works with a version of PySpark.

A connector is built for one minor version of Spark and fails on the next. So only releases that were tested are listed
here. Spark downloads a connector when its JVM starts (`spark.jars.packages`), and keeps it in the user's Ivy folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyspark
from pyspark.errors import PySparkRuntimeError

from dblog.core.settings import Setting, text
from dblog.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RELEASES: Mapping[str, Mapping[str, str]] = {
    "delta": {
        "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0",
        "4.1": "io.delta:delta-spark_4.1_2.13:4.4.0",
        "4.0": "io.delta:delta-spark_4.0_2.13:4.4.0",
    },
    "iceberg": {
        "4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
        "4.0": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
    },
    # 4.1 and 4.2 of the connector run too, but a part of them, spark-token-provider-kafka, could not be fetched.
    "kafka": dict.fromkeys(["4.3", "4.2", "4.1", "4.0"], "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"),
}
"""The connector's Maven coordinates, by sink and minor version of PySpark. docs/spark-versions.md shows this table."""
NONE = "none"
"""Value of the setting `package` with which nothing is downloaded: Spark has the connector already."""

PACKAGE = Setting(
    "package",
    "the connector that Spark fetches; none if Spark has it already; without it the release that is known to run",
    text("group:artifact:version or none"),
    default=None,
)
"""The setting of every sink that needs a connector."""


def package_of(sink: str, given: str | None, version: str = pyspark.__version__) -> str | None:
    """The package that Spark downloads for a sink. Raises ConfigError if none is known to work with this PySpark."""
    if given is not None:
        return None if given == NONE else given
    known = RELEASES[sink]
    found = known.get(".".join(version.split(".")[:2]))
    if found is None:
        raise ConfigError(
            f"no release of the connector for {sink!r} is known to run on PySpark {version}, only on "
            + " and ".join(known),
            hint='if there is one by now, set package = "group:artifact:version"; everything else works without',
        )
    return found


@contextmanager
def fetching(packages: str) -> Iterator[None]:
    """Around the start of a session that downloads packages: raise ConfigError if that fails. Spark's own error only
    says that its JVM has ended."""
    try:
        yield
    except PySparkRuntimeError as error:
        if not packages or error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise ConfigError(
            f"Spark did not start: the packages {packages!r} could not be fetched",
            hint="dblog run --verbose shows why; Spark needs the network once, then keeps them in ~/.ivy2.5.2; a "
            "mirror is set as spark.jars.repositories in spark-defaults.conf; all else works without these sinks",
        ) from None


def check_loaded(spark: SparkSession, sink: str, needed: str, package: str | None) -> None:
    """Raise ConfigError unless Spark has the class `needed` of the connector: the session was started without it."""
    loader = spark.sparkContext._jvm.Thread.currentThread().getContextClassLoader()  # type: ignore[union-attr]
    try:
        loader.loadClass(needed)
    except Exception:
        raise ConfigError(
            f"Spark does not have the connector for {sink!r}",
            hint=f"start the session with spark.jars.packages = {package}" if package else "add its jar to Spark",
        ) from None
