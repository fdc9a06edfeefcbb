#!/bin/sh
# Put a REST catalog of Iceberg, which needs no more than a Java, below the virtual environment to test on:
# iceberg_rest.sh <venv>
# Never fails: where it cannot be fetched (212 MB) the tests are left out.
set -u
scripts=$(cd "$(dirname "$0")" && pwd)
venv=$(cd "$1" && pwd)
[ ! -d "$venv/iceberg-rest" ] || exit 0

echo "fetching a REST catalog of Iceberg, to test on"
new=$venv/iceberg-rest.new
said=$venv/iceberg-rest.said
rm -rf "$new"
JAVA_HOME=$("$scripts/java.sh" "$venv")
export JAVA_HOME
if sed -n "s/^# jar //p" "$scripts/iceberg_rest.sh" | "$venv/bin/python" "$scripts/jars.py" "$new" >"$said" 2>&1; then
    mv "$new" "$venv/iceberg-rest"
else
    tail -n 5 "$said"
    echo "the REST catalog of Iceberg could not be fetched here: its tests are left out"
    rm -rf "$new"
fi
rm -f "$said"
exit 0

# The catalog with which Iceberg tests its own clients, with all that it needs.
# jar 09e6aef58984eaa58bf1e1bc5193ad023e929c6bfd38c82db7b83ffe825af724 org.apache.iceberg:iceberg-open-api:1.10.1
