"""Hadoop's S3A, by which Spark reads and writes `s3a://`: the packages that it needs, and its credentials.

PySpark comes with Hadoop's client and without S3A. S3A has the release of Hadoop, and asks for a bundle of all services
of AWS. It uses only a few of them, and with those 15 MB are fetched in all. They are listed here for each release of
Hadoop with which this was tested.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.find_spark_home import _find_spark_home

from dblog.errors import ConfigError
from dblog.sinks.packages import NONE
from dblog.storage.object_storage import ObjectStorage, is_s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SDK: Mapping[str, str] = {"3.4.1": "2.29.52", "3.4.2": "2.29.52", "3.5.0": "2.35.4"}
"""A release of AWS' SDK that S3A works with, by the release of Hadoop: those of PySpark 4.0, 4.1, and 4.2 and 4.3."""
PARTS = ("s3", "s3-transfer-manager", "sts")
"""The parts of the SDK that S3A uses."""
LEFT_OUT = ("software.amazon.awssdk:bundle", "io.netty:*", "org.slf4j:*")
"""What is not fetched: the bundle, and what Spark has itself."""


def s3a_settings(uri: str, objects: ObjectStorage) -> dict[str, str]:
    """Settings that the Spark session must be started with to write to a URI: none unless it is one of S3. Raises
    ConfigError."""
    if not is_s3(uri) or objects.package == NONE:
        return {}
    if objects.package is not None:
        return {"spark.jars.packages": objects.package}
    release = hadoop_release(Path(_find_spark_home()) / "jars")
    if release is None:
        raise ConfigError(
            f"cannot find out which S3A Spark needs for {uri!r}: it has no Hadoop of its own",
            hint="set storage.package: none if Spark has S3A already, else org.apache.hadoop:hadoop-aws:<version>",
        )
    s3a = f"org.apache.hadoop:hadoop-aws:{release}"
    if release not in SDK:
        return {"spark.jars.packages": s3a}
    parts = [f"software.amazon.awssdk:{part}:{SDK[release]}" for part in PARTS]
    return {"spark.jars.packages": ",".join([s3a, *parts]), "spark.jars.excludes": ",".join(LEFT_OUT)}


def hadoop_release(jars: Path) -> str | None:
    """The release of Hadoop among Spark's jars; None if it has none."""
    found = (re.fullmatch(r"hadoop-client-api-([\d.]+)\.jar", jar.name) for jar in jars.glob("hadoop-client-api-*.jar"))
    return next((match[1] for match in found if match), None)


def give_credentials(spark: SparkSession, objects: ObjectStorage) -> None:
    """Tell Hadoop how to reach object storage. Settings of a session would be in the command line of its JVM, which
    other users of the machine can see."""
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in objects.hadoop_settings().items():
        if name.endswith(".impl"):
            settings.setIfUnset(name, value)  # a platform may serve s3:// by a file system of its own
        else:
            settings.set(name, value)
