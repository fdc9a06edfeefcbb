#!/bin/sh
# Unpack Oracle's MySQL, which Debian has in sid only, below the virtual environment to test on: mysql.sh <venv>
# Never fails: where it cannot be fetched its tests are left out.
set -u
. "$(dirname "$0")/unpack.sh"
venv=$(cd "$1" && pwd)
[ ! -x "$venv/mysql/bin/mysqld" ] || exit 0

echo "fetching MySQL from Debian's sid, to test on"
new=$venv/mysql.new
rm -rf "$new"
if unpack sid "$new" mysql-server-core mysql-client-core &&
    wrap "$new" bin/mysql bin/mysql &&
    wrap "$new" bin/mysqlbinlog bin/mysqlbinlog &&
    wrap "$new" bin/mysqld sbin/mysqld '--basedir="$home/root/usr" --plugin-dir="$home/root/usr/lib/mysql/plugin"' &&
    "$new/bin/mysqld" --no-defaults --version; then
    mv "$new" "$venv/mysql"
else
    echo "MySQL could not be fetched here: its tests are left out"
    rm -rf "$new"
fi
exit 0
