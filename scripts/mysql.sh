#!/bin/sh
# Unpack Oracle's MySQL below the virtual environment, for the tests of that source: mysql.sh <venv>
#
# Debian has it in sid only, so its packages are fetched under an apt state of our own and nothing is installed: the
# server runs with the libraries that it came with. Never fails: where it cannot be fetched its tests are left out.
set -u
home=$1/mysql
[ ! -x "$home/bin/mysqld" ] || exit 0

# From the mirror that the machine uses already.
fetch() {
    command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
    mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep '/debian/$' | sort -u | head -n 1)
    [ -n "$mirror" ] || return 1
    mkdir -p "$new/apt/lists/partial" "$new/apt/archives/partial" "$new/debs" "$new/root" "$new/bin" || return 1
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    echo "deb [signed-by=$keys] $mirror sid main" >"$new/apt/sources.list"
    : >"$new/apt/status"
    cat >"$new/apt/apt.conf" <<CONF
Dir::State "$new/apt";
Dir::State::status "$new/apt/status";
Dir::Cache "$new/apt";
Dir::Etc::SourceList "$new/apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
APT::Sandbox::User "";
Acquire::Languages "none";
CONF
    export APT_CONFIG="$new/apt/apt.conf"
    apt-get update -qq || return 1
    # A server needs none of these to run.
    unneeded='^(perl.*|libperl.*|libgdbm.*|libdb5.*|libc-gconv.*|gcc-.*|mysql-common|debconf)$'
    packages=$(apt-get install -s --no-install-recommends mysql-server-core mysql-client-core |
        awk '/^Inst/ { print $2 }' | grep -vE "$unneeded")
    [ -n "$packages" ] && (cd "$new/debs" && apt-get download -qq $packages) || return 1
    for package in "$new"/debs/*.deb; do
        dpkg -x "$package" "$new/root" || return 1
    done
    rm -rf "$new/apt" "$new/debs" "$new/root/usr/share/doc" "$new/root/usr/share/man"
}

# A program of the packages that runs from anywhere: options that say where its files are come last.
wrap() {
    cat >"$new/bin/$1" <<WRAPPER
#!/bin/sh
root=\$(dirname "\$0")/../root
lib=\$(echo "\$root"/usr/lib/*-linux-gnu*)
exec "\$(echo "\$lib"/ld-linux*)" --library-path "\$lib:\$root/usr/lib/mysql/private" "\$root/usr/$2" "\$@" $3
WRAPPER
    chmod +x "$new/bin/$1"
}

echo "fetching MySQL from Debian's sid, to test on"
new=$(cd "$1" && pwd)/mysql.new
rm -rf "$new"
if fetch && wrap mysqld sbin/mysqld '--basedir="$root/usr" --plugin-dir="$root/usr/lib/mysql/plugin"' &&
    wrap mysql bin/mysql '' && "$new/bin/mysqld" --no-defaults --version; then
    mv "$new" "$home"
else
    echo "MySQL could not be fetched here: its tests are left out"
    rm -rf "$new"
fi
exit 0
