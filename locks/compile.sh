#!/usr/bin/env bash
# Resolve every lock file anew (after a change of dependencies in pyproject.toml). Exact versions with checksums, for every platform
# and Python from 3.11; no package index is named in them, so that each user's own is used.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=.tools/bin/uv
[ -x "$uv" ] || uv=$(command -v uv)
export UV_CUSTOM_COMPILE_COMMAND="locks/compile.sh"
compile() { "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header "$@"; }

compile locks/tools.in -o locks/tools.lock
# Of the image of services, which holds both distributions. Neither is in an index.
compile pipelines/pyproject.toml --no-emit-package tailrace -o locks/requirements.lock
compile pyproject.toml --extra dev --extra local -o locks/requirements-dev.lock
# The development environment's versions with what draws plots on top: `make bench` adds these to it, and must not change what is there.
compile pyproject.toml --extra bench --constraint locks/requirements-dev.lock -o locks/requirements-bench.lock
compile pyproject.toml --extra engine-cpu --override locks/engine-overrides.txt -o locks/requirements-engine-cpu.lock
compile pyproject.toml --extra engine-gpu --override locks/engine-overrides.txt -o locks/requirements-engine-gpu.lock
