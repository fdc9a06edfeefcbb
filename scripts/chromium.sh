#!/bin/sh
# Install Debian's Chromium for the tests of the page. Never fails: where it cannot be installed they are left out.
set -u
. "$(dirname "$0")/root.sh"

! command -v chromium >/dev/null || exit 0

echo "installing Debian's chromium, to test the page in"
apt_install chromium || echo "chromium could not be installed here: the tests of the page are left out"
exit 0
