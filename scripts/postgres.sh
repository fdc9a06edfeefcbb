#!/bin/sh
# Install Debian's PostgreSQL beside the wheel's, so that the tests run on two versions. Never fails: where it cannot be
# installed the tests run on one.
set -u
. "$(dirname "$0")/root.sh"

[ -z "$(ls -d /usr/lib/postgresql/*/bin/postgres 2>/dev/null)" ] || exit 0

echo "installing Debian's postgresql, as a second version to test on"
# Only the programs are wanted: without this the package would create a cluster and start it.
conf=/etc/postgresql-common/createcluster.conf
apt_install postgresql-common &&
    as_root sed -i 's/^#\?create_main_cluster.*/create_main_cluster = false/' "$conf" &&
    apt_install postgresql ||
    echo "postgresql could not be installed here: the tests run on the wheel's alone"
exit 0
