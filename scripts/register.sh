#!/usr/bin/env bash
# register.sh ENVIRONMENT: make this working tree importable there, with the `tailrace` command and the vLLM plug-in entry.
# An editable installation without network: setuptools comes from .tools, dependencies from the lock files.
set -euo pipefail
cd "$(dirname "$0")/.."
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
# "compat" writes one path file, so that a new package of the tree is importable without registering again.
.tools/bin/python -W ignore - "$wheels" >/dev/null 2>"$wheels/errors" <<'PYTHON' || { cat "$wheels/errors" >&2; exit 1; }
import sys
from setuptools import build_meta
build_meta.build_editable(sys.argv[1], {"editable_mode": "compat"})
PYTHON
.tools/bin/uv pip install --quiet --no-deps --no-index --reinstall-package tailrace --python "$1/bin/python" "$wheels"/tailrace-*.whl
