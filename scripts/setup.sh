# Sourced by the other scripts: a virtual environment in .venv with this checkout installed, and libfuse if that is possible.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${GLASSFS_VENV:-$root/.venv}

say() { printf '%s\n' "$*" >&2; }

# as_root COMMAND... : with root or with a sudo that does not ask.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

# install_packages PACKAGE... : Debian packages. Services among them are not started.
install_packages() {
    if ! command -v apt-get >/dev/null || ! as_root true 2>/dev/null; then return 1; fi
    as_root apt-get -o DPkg::Lock::Timeout=120 update -qq >/dev/null 2>&1
    (
        # Debian starts a service when it is installed, unless this says no.
        policy=/usr/sbin/policy-rc.d
        if [ ! -e $policy ]; then
            trap 'as_root rm -f $policy' EXIT
            printf '#!/bin/sh\nexit 101\n' | as_root tee $policy && as_root chmod 755 $policy || exit 1
        fi
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 install -y -qq "$@"
    ) >/dev/null 2>&1
}

# disable_services UNIT... : they do not start with the machine either.
disable_services() {
    if [ -d /run/systemd/system ]; then as_root systemctl disable --now "$@" >/dev/null 2>&1 || true; fi
}

# has_library NAME : whether the dynamic linker finds it.
has_library() { "$venv/bin/python" -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$1" 2>/dev/null; }

# find_python : the interpreter to use, $GLASSFS_PYTHON if that is set.
find_python() {
    local candidate
    for candidate in ${GLASSFS_PYTHON:-python3.14 python3.13 python3.12 python3.11 python3.10 python3}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    if [ -n "${GLASSFS_PYTHON:-}" ]; then
        say "GLASSFS_PYTHON=$GLASSFS_PYTHON does not run Python 3.10 or newer"
    else
        say "glassfs needs Python 3.10 or newer: 'apt install python3'"
    fi
    return 1
}

# make_environment [EXTRA] : .venv with glassfs, and with the optional dependencies EXTRA.
make_environment() {
    local stamp wanted python extra=${1:+[$1]}
    stamp=$venv/.installed${1:+-$1}
    wanted="$(cksum <"$root/pyproject.toml") ${GLASSFS_PYTHON:-}"
    if [ -x "$venv/bin/glassfs" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        compile_modules
        return
    fi
    python=$(find_python) || return 1
    say "setting up $venv …"
    if [ -n "${GLASSFS_PYTHON:-}" ] && [ "$("$venv/bin/python" -V 2>&1)" != "$("$python" -V)" ]; then rm -rf "$venv"; fi
    if ! "$python" -m venv "$venv" 2>/dev/null; then
        rm -rf "$venv"
        if ! install_packages python3-venv || ! "$python" -m venv "$venv"; then
            say "Python cannot make a virtual environment: 'apt install python3-venv'"
            return 1
        fi
    fi
    "$venv/bin/pip" install --quiet --disable-pip-version-check --editable "$root$extra" || return 1
    echo "$wanted" >"$stamp"
    compile_modules
}

# compile_modules : once, or where PYTHONDONTWRITEBYTECODE is set each start of glassfs would do it.
compile_modules() { "$venv/bin/python" -m compileall -q "$root/src" || say "not all modules can be compiled"; }
