# Sourced by the other scripts: run a command with root's rights where that needs no question, and install packages.

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        sudo -n "$@"
    else
        return 1
    fi
}

# Returns non-zero where there is no apt, no right to use it or no such package: the caller decides what that means.
apt_install() {
    command -v apt-get >/dev/null && as_root true || return 1
    as_root apt-get update -qq >&2 || true
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
}
