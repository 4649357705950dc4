#!/usr/bin/env bash
# Make .venv with the project, its SDK and the development tools, both installed editable.
#
# What is fetched is what the lock file names, by hash; `make lock` refreshes it. A stamp holds what the environment was
# made from (both project files, the lock, the Python version, the folder), so that the second run takes a moment and a
# changed dependency is picked up.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'set-up: %s\n' "$*" >&2; }

bash setup/packages.sh python
stamp=.venv/made-from
lock=sandboxes/locks/dev.txt
wanted=$({ python3 -V && pwd && cat pyproject.toml sdk/pyproject.toml "$lock"; } | sha256sum | cut -d' ' -f1)

if [ -x .venv/bin/python ] && .venv/bin/python -c '' 2>/dev/null; then
    [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ] || exit 0
else
    rm -rf .venv
    python3 -m venv .venv
fi
say "installing Python packages into .venv (the first time takes about a minute)"
pip_install() { .venv/bin/python -m pip install --quiet --quiet --disable-pip-version-check --no-input "$@" </dev/null; }
pip_install --require-hashes --requirement "$lock"
# The build's own needs are in the lock too, so nothing is fetched that has no hash.
pip_install --no-deps --no-build-isolation -e . -e ./sdk
printf '%s\n' "$wanted" >"$stamp"
