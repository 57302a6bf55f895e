#!/usr/bin/env bash
# Prepares this machine for the build: installs Debian packages, then makes a Python environment in
# .venv. Installs only what is missing, and upgrades and removes nothing. A second run does nothing
# and needs no network.
#
#   scripts/setup.sh [all]        with all: also installs what make test-all needs
#
#   HOLDFAST_PIP_OPTIONS   more options for pip install, such as --index-url ...
#   HOLDFAST_NO_APT=1      installs no Debian packages, but says what is missing
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "setup: $*" >&2; }
die() { say "$*"; exit 1; }

# Prints the package lists: one package on each line, with fields separated by |.
list_packages() {
  local files=(scripts/packages.txt)
  if [[ $1 == all ]]; then files+=(scripts/packages-all.txt); fi
  grep -hv '^#' "${files[@]}" | sed 's/ *| */|/g'
  if [[ $1 == all ]]; then cross_compiler; fi
}

# Prints the package of the compiler for the other CPU (x86-64 or aarch64), in the same form.
cross_compiler() {
  local why="Compiles for the other CPU."
  case $(uname -m) in
    aarch64) echo "g++-x86-64-linux-gnu|command:x86_64-linux-gnu-g++|GCC for x86-64|$why" ;;
    x86_64) echo "g++-aarch64-linux-gnu|command:aarch64-linux-gnu-g++|GCC for aarch64|$why" ;;
  esac
}

# True on Debian and systems made from it, unless HOLDFAST_NO_APT is set.
has_apt() {
  [[ -z ${HOLDFAST_NO_APT:-} ]] && command -v apt-get >/dev/null &&
    command -v dpkg-query >/dev/null &&
    [[ " $(. /etc/os-release && echo "${ID:-} ${ID_LIKE:-}") " =~ \ (debian|ubuntu)\  ]]
}

is_installed() {
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

as_root() {
  if [[ $(id -u) == 0 ]]; then "$@"; else sudo "$@"; fi
}

install_packages() {
  local missing=() name
  while IFS='|' read -r name _; do
    is_installed "$name" || missing+=("$name")
  done < <(list_packages "$1")
  if [[ ${#missing[@]} == 0 ]]; then return; fi
  local install=(apt-get install -y --no-install-recommends --no-upgrade --no-remove)
  if [[ $(id -u) != 0 ]] && ! command -v sudo >/dev/null; then
    die "not root and no sudo; as root run: ${install[*]} ${missing[*]}"
  fi
  say "installing ${missing[*]}"
  local wait=(-o DPkg::Lock::Timeout=300)
  {
    as_root apt-get "${wait[@]}" update -q &&
      as_root env DEBIAN_FRONTEND=noninteractive "${install[@]}" "${wait[@]}" -q "${missing[@]}"
  } || die "not installed; as root run: apt-get update && ${install[*]} ${missing[*]}"
}

# True if this Python can make an environment in which the Python module can be compiled.
python_serves() {
  "$1" - <<'END' >/dev/null 2>&1
import ensurepip, os, sys, sysconfig, venv
assert sys.version_info >= (3, 11)
assert os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
END
}

# The first Python that serves: the one on PATH, or else the system's.
find_python() {
  local candidate
  for candidate in python3 /usr/bin/python3; do
    if python_serves "$candidate"; then echo "$candidate"; return; fi
  done
  return 1
}

# True if the compiler finds the header. Also true without a compiler: then headers cannot be
# checked, and the compiler itself is reported as missing.
has_header() {
  command -v "${CXX:-g++}" >/dev/null || return 0
  echo "#include <$1>" | "${CXX:-g++}" -std=c++20 -E -x c++ - >/dev/null 2>&1
}

is_there() {
  case $1 in
    header:Python.h | python:*) find_python >/dev/null ;;
    optional:*) true ;;
    command:*) command -v "${1#command:}" >/dev/null ;;
    header:*) has_header "${1#header:}" ;;
    *) die "$1: no such probe" ;;
  esac
}

# For systems without apt: names every missing package, one on each line, and stops.
probe_packages() {
  local missing=0 name probe elsewhere why
  while IFS='|' read -r name probe elsewhere why; do
    is_there "$probe" && continue
    say "missing ${probe#*:}: install $elsewhere (Debian: $name). $why"
    missing=$((missing + 1))
  done < <(list_packages "$1")
  if ((missing > 0)); then
    die "$missing missing; they are not installed with apt here, so nothing was changed"
  fi
}

# check_version NAME SEEN LEAST: stops if the version SEEN is older than LEAST.
check_version() {
  [[ $(printf '%s\n' "$3" "$2" | sort -V | head -n 1) == "$3" ]] ||
    die "$1: version $2; expected $3 or newer"
}

check_tools() {
  check_version cmake "$(cmake --version | sed -n '1s/[^0-9]*//p')" 3.25
  check_version "${CXX:-g++}" "$("${CXX:-g++}" -dumpversion)" 12
}

make_environment() {
  local python stamp=.venv/holdfast-requirements
  if .venv/bin/python -c 'import pip' 2>/dev/null; then
    if cmp -s scripts/requirements.txt "$stamp"; then return; fi
  else
    python=$(find_python) ||
      die "python3: none is usable; expected 3.11 or newer with venv, ensurepip and Python.h"
    say "making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv
    rm -rf build/check build/release build/wheel  # they were configured for the old environment
  fi
  # Removed first and written last, so that a failed installation is tried again.
  rm -f "$stamp"
  # Python compiles modules when they are first imported. To compile all of torch here would take
  # longer than to install it. Not quoted, because the variable may hold several options.
  # shellcheck disable=SC2086
  python3 scripts/progress.py "installing Python packages" .venv/pip.log \
    .venv/bin/python -m pip install --disable-pip-version-check -q --no-compile \
    ${HOLDFAST_PIP_OPTIONS:-} -r scripts/requirements.txt
  cp scripts/requirements.txt "$stamp"
}

main() {
  if has_apt; then install_packages "$1"; else probe_packages "$1"; fi
  check_tools
  make_environment
}

main "${1:-test}"
