#!/bin/sh
# Put the tables that Spark's own tests MERGE into below the virtual environment, for the tests of Declarative Pipelines:
# tables.sh <venv>
#
# They are not published for every version of Spark; these run on 4.3 too.
set -eu
scripts=$(cd "$(dirname "$0")" && pwd)
venv=$(cd "$1" && pwd)
[ ! -f "$venv/tables.jar" ] || exit 0

echo "fetching tables that Spark can MERGE into, to test on"
JAVA_HOME=$("$scripts/java.sh" "$venv")
export JAVA_HOME
rm -rf "$venv/tables"
echo "9f46cfb6d4cb5dff696b76f8af3db1ecfc56cbc43ffb0fa785ef947ac4ad2620" \
    "org.apache.spark:spark-catalyst_2.13:4.2.0:tests" | "$venv/bin/python" "$scripts/jars.py" "$venv/tables"
mv "$venv"/tables/*.jar "$venv/tables.jar"
rmdir "$venv/tables"
