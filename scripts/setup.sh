# Sourced by the other scripts. Makes a virtual environment in .venv with this checkout installed, and installs Debian packages.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${GLASSFS_VENV:-$root/.venv}

say() { printf '%s\n' "$*" >&2; }

# as_root COMMAND... : run it as root, or through sudo if that asks for no password.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

# install_packages PACKAGE... : install Debian packages, without starting their services.
install_packages() {
    if ! command -v apt-get >/dev/null || ! as_root true 2>/dev/null; then return 1; fi
    as_root apt-get -o DPkg::Lock::Timeout=120 update -qq >/dev/null 2>&1
    (
        # Debian starts a service when it is installed, unless this file forbids it.
        policy=/usr/sbin/policy-rc.d
        if [ ! -e $policy ]; then
            trap 'as_root rm -f $policy' EXIT
            printf '#!/bin/sh\nexit 101\n' | as_root tee $policy && as_root chmod 755 $policy || exit 1
        fi
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 install -y -qq \
            --no-install-recommends "$@"
    ) >/dev/null 2>&1
}

# disable_services UNIT... : keep them from starting with the machine.
disable_services() {
    if [ -d /run/systemd/system ]; then as_root systemctl disable --now "$@" >/dev/null 2>&1 || true; fi
}

# find_python : print the interpreter to use, $GLASSFS_PYTHON if that is set.
find_python() {
    local candidate found other="" names=(python3.14 python3.13 python3.12 python3.11 python3.10 python3)
    # Of all that are on the path one built with optimizations, which takes a tenth to a third less time, and that can
    # make an environment. Distributions, whose Python is in /usr, build so without a word in sysconfig.
    while read -r candidate; do
        found=$("$candidate" -c 'import ensurepip, sys, sysconfig
if sys.version_info >= (3, 10):
    optimized = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    print("optimized" if optimized or sys.base_prefix == "/usr" else "other")' 2>/dev/null) || continue
        if [ "$found" = optimized ]; then
            echo "$candidate"
            return
        fi
        if [ -n "$found" ] && [ -z "$other" ]; then other=$candidate; fi
    done < <(if [ -n "${GLASSFS_PYTHON:-}" ]; then echo "$GLASSFS_PYTHON"; else type -aP "${names[@]}"; fi)
    # Debian's without python3-venv lacks ensurepip.
    for candidate in $other ${GLASSFS_PYTHON:-"${names[@]}"}; do
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

# make_environment [EXTRAS] : make .venv with glassfs and its optional dependencies EXTRAS (test, dev, dev,torch …).
make_environment() {
    local wanted python stamp stamps compiling extras=${1:-}
    wanted="$(cksum <"$root/pyproject.toml") ${GLASSFS_PYTHON:-}"
    # An environment with more than what is asked for will do.
    case $extras in
        "") stamps=("$venv"/.installed*) ;;
        test) stamps=("$venv/.installed-test" "$venv"/.installed-dev*) ;;
        dev) stamps=("$venv"/.installed-dev*) ;;
        *) stamps=("$venv/.installed-$extras") ;;
    esac
    for stamp in "${stamps[@]}"; do
        if [ -x "$venv/bin/glassfs" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
            compile_modules
            return
        fi
    done
    python=$(find_python) || return 1
    if [ -n "${GLASSFS_PYTHON:-}" ] && [ "$("$venv/bin/python" -V 2>&1)" != "$("$python" -V)" ]; then rm -rf "$venv"; fi
    if [ ! -x "$venv/bin/pip" ]; then
        say "making the virtual environment $venv …"
        if ! "$python" -m venv "$venv" >/dev/null 2>&1; then
            rm -rf "$venv"
            if ! install_packages python3-venv || ! "$python" -m venv "$venv"; then
                say "Python cannot make a virtual environment: 'apt install python3-venv'"
                return 1
            fi
        fi
    fi
    say "installing glassfs${extras:+[$extras]} with pip …"
    # The tests of each change import a small part of what pip would compile; Python compiles that part itself.
    if [ "$extras" = test ]; then compiling=(--no-compile); fi
    pip_install ${compiling[@]+"${compiling[@]}"} --editable "$root${extras:+[$extras]}" || return 1
    echo "$wanted" >"$venv/.installed${extras:+-$extras}"
    compile_modules
}

# pip_install ARGUMENT... : run pip install, and show what it printed only if it fails.
pip_install() {
    local printed
    if ! printed=$("$venv/bin/pip" install --quiet --no-input --disable-pip-version-check "$@" 2>&1); then
        say "$printed"
        return 1
    fi
}

# compile_modules : compile src once. With PYTHONDONTWRITEBYTECODE set, each start of glassfs would compile it again.
compile_modules() { "$venv/bin/python" -m compileall -q "$root/src" || say "some modules cannot be compiled"; }
