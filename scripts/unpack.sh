# Sourced by the scripts of servers that the machine's own Debian does not have: unpack packages of another suite, and
# run their programs with the libraries that came with them. Nothing is installed, and no rights are needed.

# unpack <suite> <folder> <package>...: into <folder>/root, from the mirror that the machine uses already.
unpack() {
    suite=$1 folder=$2
    shift 2
    command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
    mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep '/debian/$' | sort -u | head -n 1)
    [ -n "$mirror" ] || return 1
    mkdir -p "$folder/apt/lists/partial" "$folder/apt/archives/partial" "$folder/debs" "$folder/root" || return 1
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    echo "deb [signed-by=$keys] $mirror $suite main" >"$folder/apt/sources.list"
    : >"$folder/apt/status"
    cat >"$folder/apt/apt.conf" <<CONF
Dir::State "$folder/apt";
Dir::State::status "$folder/apt/status";
Dir::Cache "$folder/apt";
Dir::Etc::SourceList "$folder/apt/sources.list";
Dir::Etc::SourceParts "/dev/null";
APT::Sandbox::User "";
Acquire::Languages "none";
CONF
    export APT_CONFIG="$folder/apt/apt.conf"
    apt-get update -qq || return 1
    # What the servers depend on and do not need to run.
    unneeded='^(perl.*|libperl.*|libgdbm.*|libdb5.*|libc-gconv.*|gcc-.*|mysql-common|mariadb-common|debconf|passwd)$'
    packages=$(apt-get install -s --no-install-recommends "$@" | awk '/^Inst/ { print $2 }' | grep -vE "$unneeded")
    [ -n "$packages" ] && (cd "$folder/debs" && apt-get download -qq $packages) || return 1
    for package in "$folder"/debs/*.deb; do
        dpkg -x "$package" "$folder/root" || return 1
    done
    rm -rf "$folder/apt" "$folder/debs" "$folder/root/usr/share/doc" "$folder/root/usr/share/man"
}

# wrap <folder> <command> <program> [<options>]: <folder>/<command> runs a program of <folder>/root/usr, wherever the
# folder lies. In the options, which come last, $home is the folder.
wrap() {
    mkdir -p "$(dirname "$1/$2")"
    cat >"$1/$2" <<WRAPPER
#!/bin/sh
home=\$(cd "\$(dirname "\$0")/.." && pwd)
lib=\$(echo "\$home"/root/usr/lib/*-linux-gnu*)
exec "\$(echo "\$lib"/ld-linux*)" --library-path "\$lib:\$home/root/usr/lib/mysql/private" "\$home/root/usr/$3" "\$@" ${4:-}
WRAPPER
    chmod +x "$1/$2"
}
