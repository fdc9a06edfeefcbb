#!/bin/sh
# Unpack the MariaDB of Debian's trixie, beside the machine's own, below the virtual environment to test on:
# mariadb11.sh <venv>. Never fails: where it cannot be fetched its tests are left out.
set -u
. "$(dirname "$0")/unpack.sh"
venv=$(cd "$1" && pwd)
[ ! -x "$venv/mariadb11/sbin/mariadbd" ] || exit 0

# The script that creates a data directory looks for the other programs below one folder.
wrap_install_db() {
    cat >"$1/bin/mariadb-install-db" <<'WRAPPER'
#!/bin/sh
home=$(cd "$(dirname "$0")/.." && pwd)
exec sh "$home/root/usr/bin/mariadb-install-db" "$@" --basedir="$home"
WRAPPER
    chmod +x "$1/bin/mariadb-install-db" && ln -s root/usr/share "$1/share"
}

echo "fetching MariaDB 11 from Debian's trixie, to test on"
new=$venv/mariadb11.new
rm -rf "$new"
if unpack trixie "$new" mariadb-server-core mariadb-client-core &&
    wrap "$new" sbin/mariadbd sbin/mariadbd '--basedir="$home"' &&
    wrap "$new" bin/my_print_defaults bin/my_print_defaults &&
    wrap "$new" bin/resolveip bin/resolveip &&
    wrap_install_db "$new" &&
    "$new/sbin/mariadbd" --no-defaults --version; then
    mv "$new" "$venv/mariadb11"
else
    echo "MariaDB 11 could not be fetched here: its tests are left out"
    rm -rf "$new"
fi
exit 0
