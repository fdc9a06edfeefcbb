"""Fetch jars through Spark's own resolver: jars.py <folder>, with lines of "<SHA-256> <group>:<artifact>:<version>" on
standard input, with ":<classifier>" where the jar has one.

Only the jars that are named come, not what they depend on, and each must have its digest. They come from where Spark
itself would fetch a package on this machine: the local caches of Maven and Ivy, then the repositories that
`spark.jars.repositories` and `spark.jars.ivySettings` of spark-defaults.conf name, else those that Spark knows. Needs a
Java and nothing else.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

MODULE = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
<info organisation="dblog" module="jars"/>
<configurations><conf name="default"/></configurations>
<dependencies>{}</dependencies>
</ivy-module>
"""


def main(folder: Path) -> None:
    wanted = [line.split() for line in sys.stdin if line.strip()]
    folder.mkdir(parents=True, exist_ok=True)
    resolve([coordinates for _, coordinates in wanted], folder)
    for digest, coordinates in wanted:
        path = folder / ("-".join(coordinates.split(":")[1:]) + ".jar")
        if not path.exists():
            sys.exit(f"{coordinates} could not be fetched")
        if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            sys.exit(f"{coordinates} is not what it was")


def resolve(wanted: list[str], folder: Path) -> None:
    gateway = launch_gateway(SparkConf(False).set("spark.ui.enabled", "false"))
    try:
        jvm = gateway.jvm
        ivy = jvm.org.apache.ivy.Ivy.newInstance(ivy_settings(jvm))
        with tempfile.TemporaryDirectory() as work:
            module = Path(work, "ivy.xml")
            module.write_text(MODULE.format("".join(map(dependency, wanted))))
            report = ivy.resolve(jvm.java.io.File(str(module)))
            if report.hasError():
                sys.exit("; ".join(str(problem) for problem in report.getAllProblemMessages())[:2000])
            to = jvm.org.apache.ivy.core.retrieve.RetrieveOptions()
            to.setDestArtifactPattern(f"{folder.absolute()}/[artifact]-[revision](-[classifier]).[ext]")
            ivy.retrieve(report.getModuleDescriptor().getModuleRevisionId(), to)
    finally:
        gateway.shutdown()


def ivy_settings(jvm: Any) -> Any:
    """Ivy's settings as Spark makes them of its own."""
    conf = jvm.org.apache.spark.SparkConf(True)
    utils, option = jvm.org.apache.spark.util.MavenUtils, jvm.scala.Option
    repositories = option.apply(conf.get("spark.jars.repositories", None))
    cache = option.apply(conf.get("spark.jars.ivy", None))
    file = conf.get("spark.jars.ivySettings", None)
    if file:
        return utils.loadIvySettings(file, repositories, cache, jvm.System.err)
    return utils.buildIvySettings(repositories, cache, True, jvm.System.err)


def dependency(coordinates: str) -> str:
    group, artifact, version, *classifier = coordinates.split(":")
    own = "".join(f'<artifact name={quoteattr(artifact)} type="jar" m:classifier={quoteattr(c)}/>' for c in classifier)
    place = f"org={quoteattr(group)} name={quoteattr(artifact)} rev={quoteattr(version)}"
    return f'<dependency {place} conf="default->master" transitive="false">{own}</dependency>'


if __name__ == "__main__":
    main(Path(sys.argv[1]))
