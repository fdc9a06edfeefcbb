#!/bin/sh
# Install Debian's MariaDB for the tests of that source. Never fails: where it cannot be installed they are left out.
set -u
. "$(dirname "$0")/root.sh"

PATH=$PATH:/usr/sbin
! command -v mariadbd >/dev/null || exit 0

echo "installing Debian's mariadb-server, to test on"
# Only the programs are wanted: where services are started at once, this keeps the package from starting its own.
policy=/usr/sbin/policy-rc.d
made=
[ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' | as_root tee $policy >/dev/null && as_root chmod +x $policy && made=1; }
apt_install mariadb-server || echo "mariadb-server could not be installed here: its tests are left out"
[ -z "$made" ] || as_root rm -f $policy
exit 0
