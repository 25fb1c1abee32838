#!/usr/bin/env bash
# From a bare Debian or Ubuntu to a working `.venv`, then `python -m tailrace.local.install` for all the rest.
# Needs only a shell. A step that is done already is skipped, so it may run any number of times.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*"; }
fail() { printf 'make install: %s\n' "$*" >&2; exit 1; }

# Installing packages needs root; without it the message names what is missing.
apt_ready=
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
apt_install() {
  local sudo=()
  command -v apt-get >/dev/null || return 1
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null && sudo -n true 2>/dev/null || return 1
    sudo=(sudo -n)
  fi
  if [ -z "$apt_ready" ]; then
    say "installing Debian packages (apt-get update first)"
    "${sudo[@]}" apt-get update -qq >/dev/null || true # one broken source of several is no failure; the installation below reports it
    apt_ready=1
  fi
  say "  installing $*"
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >/dev/null 2>"$errors" || { cat "$errors" >&2; return 1; }
}

# 3.11 to 3.13 first: for those every package below has a ready wheel.
supported() { "$1" -c 'import sys; sys.exit(not sys.version_info >= (3, 11))' 2>/dev/null; }
find_python() {
  local name
  for name in ${PYTHON:-} python3.12 python3.11 python3.13 python3 python3.14; do
    if command -v "$name" >/dev/null && supported "$name"; then
      command -v "$name"
      return
    fi
  done
  return 1
}

python=$(find_python) || {
  say "no Python 3.11 or newer here; installing one"
  apt_install python3 python3-venv || true
  python=$(find_python) || apt_install python3.12 python3.12-venv || apt_install python3.11 python3.11-venv || true
  python=$(find_python) || fail "Python 3.11 or newer is needed and cannot be installed from here. Install it (or name it: PYTHON=/path/to/python make install)."
}
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')

# .tools holds uv (which installs the rest, by checksum) and setuptools (which registers this project in the environments).
tools_stamp="$version $(sha256sum locks/tools.lock | cut -c1-64)"
if [ "$(cat .tools/stamp 2>/dev/null)" != "$tools_stamp" ]; then
  start=$SECONDS
  say "installing the installer (uv) into .tools"
  rm -rf .tools
  if ! "$python" -m venv .tools >/dev/null 2>&1; then
    # Debian's python3 comes without ensurepip.
    rm -rf .tools
    apt_install "python$version-venv" || apt_install python3-venv ||
      fail "this Python cannot make environments. Ask for: apt-get install python$version-venv"
    "$python" -m venv .tools
  fi
  .tools/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r locks/tools.lock
  printf '%s' "$tools_stamp" >.tools/stamp
  say "  installed the installer in $((SECONDS - start)) s"
fi

# The environment of gateway, push and the tests: no model engine in it.
stamp="$version $(cat locks/requirements-dev.lock pyproject.toml | sha256sum | cut -c1-64)"
if [ "$(cat .venv/tailrace-stamp 2>/dev/null)" != "$stamp" ]; then
  start=$SECONDS
  say "installing the Python environment into .venv (about a minute)"
  if [ ! -x .venv/bin/python ] || [ "$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" != "$version" ]; then
    rm -rf .venv
    .tools/bin/uv venv --quiet --python "$python" .venv
  fi
  .tools/bin/uv pip sync --quiet --require-hashes --python .venv/bin/python locks/requirements-dev.lock
  scripts/register.sh .venv
  printf '%s' "$stamp" >.venv/tailrace-stamp
  say "  installed the Python environment in $((SECONDS - start)) s"
fi

rm -f "$errors"
exec .venv/bin/python -m tailrace.local.install "$@"
