"""A Spark that starts quickly: most of a Spark's life in the tests is its start.

`python -m tests.spark.home` starts one, lets it do a bit of everything, and keeps the classes it has loaded (Java's
class data sharing), which halves every start after it. Without that archive the tests do the same, only later.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from dblog.spark.quick_start import SWITCH
from dblog.spark.versions import CHECKPOINT_MANAGER

CONNECTORS = Path(sys.prefix) / "kafka" / "spark"
"""Where `scripts/kafka.sh` puts Spark's connector for Kafka, so that no test waits for Spark to fetch it."""
FOLDER = Path(pyspark.__file__).parents[1]
"""Where PySpark is installed."""
HOME = Path(sys.prefix) / f"spark-{pyspark.__version__}" if FOLDER.name == "site-packages" else FOLDER / "home"
"""In the environment, or with a PySpark that `scripts/sparks.sh` has put into a folder of its own in that folder."""
ARCHIVE = HOME / "classes.jsa"
# Optimized code and a parallel collector only make a start longer. Java has little room for code that is not optimized,
# and a Spark that lives through many tests needs more.
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC -XX:-UsePerfData"
SHARED = f"-XX:SharedArchiveFile={ARCHIVE} -Xlog:disable -Xlog:all=error:stderr"

FEW_ROWS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-Xss16m",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "tests.spark.daemon",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    # A few rows are sooner read than code for them is compiled. Sparks that tests start as users do compile it.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_MANAGER,
}


def spark_home() -> Path:
    """Spark without the zip of its Python files, which each of its many Python processes would compile anew, and with
    the connectors that are there. Always in the same place and without settings of its own: else no class is shared."""
    theirs = Path(pyspark.__file__).parent
    (HOME / "jars").mkdir(parents=True, exist_ok=True)
    there = {jar.name: jar for folder in (theirs / "jars", CONNECTORS) for jar in folder.glob("*.jar")}
    for path, to in {
        HOME / "bin": theirs / "bin",
        **{HOME / "jars" / name: jar for name, jar in there.items()},
    }.items():
        if not path.exists():
            path.unlink(missing_ok=True)  # it led to a place that is gone
            with suppress(FileExistsError):  # another process does the same
                path.symlink_to(to)
    return HOME


def java_options() -> str:
    return f"{QUICK_START} {SHARED}" if ARCHIVE.exists() else QUICK_START


def quick_spark() -> dict[str, str]:
    """The environment of a process that starts a Spark."""
    return {
        "SPARK_HOME": str(spark_home()),
        "SPARK_SUBMIT_OPTS": java_options(),
        "SPARK_LAUNCHER_OPTS": QUICK_START,
        SWITCH: "false",
    }


def local_session(warehouse: Path, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A Spark in this process, for tests with a few rows."""
    # Spark's Python workers are not children of this process: they find the packages by this variable.
    root = Path(__file__).parents[2]
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [f"{root / 'src'}", f"{root}", os.environ.get("PYTHONPATH")])
    )
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("dblog tests")
    for name, value in {**FEW_ROWS, "spark.sql.warehouse.dir": str(warehouse), **settings}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def main() -> None:
    home = spark_home()
    newest = max(jar.lstat().st_mtime for jar in (home / "jars").iterdir())
    if ARCHIVE.exists() and ARCHIVE.stat().st_mtime > newest:
        return
    print("keeping Spark's classes, so that the tests' many Sparks start in half the time")
    ARCHIVE.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        new = ARCHIVE.with_suffix(".new")
        keep = f"{QUICK_START} -XX:ArchiveClassesAtExit={new} -Xlog:disable"
        environment = {**os.environ, **quick_spark(), "SPARK_SUBMIT_OPTS": keep, "PYSPARK_PYTHON": sys.executable}
        command = [sys.executable, Path(__file__).with_name("practice.py"), folder]
        done = subprocess.run(command, env=environment, cwd=folder, check=False, capture_output=True, text=True)
        if new.exists():
            new.rename(ARCHIVE)
        else:
            print(f"this Java keeps none (exit code {done.returncode}): {done.stderr[-500:]}")


if __name__ == "__main__":
    main()
