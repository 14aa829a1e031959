#!/usr/bin/env bash
# Make .venv-sglang: the real SGLang server for machines without a GPU, as the reference of the engine tests.
# It needs an environment of its own because it pins libraries the rest of the project does not (about 1.6 GB, 1-2 minutes).
# Running it again costs nothing: a stamp file holds the checksum of the version list.
#
# usage: bash scripts/setup_sglang_cpu.sh [FOLDER]      (default: .venv-sglang beside this project's .venv)
#   PYTHON         interpreter to build on, 3.11 or newer (default: the project's .venv, else python3.11 to python3.13, else python3)
#   PIP_FIND_LINKS, PIP_INDEX_URL ... are pip's own and are honoured; torch should come as a CPU build.
# Exit code 3: no Python here is new enough (the project itself runs on 3.10, the pinned libraries do not).
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
target="${1:-$root/.venv-sglang}"
versions="$root/constraints/sglang_cpu.txt"
case "${1:-}" in -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;; esac

stamp="$target/.swe-rl-$(sha256sum "$versions" | cut -c1-16)"
if [[ -f "$stamp" ]]; then
  echo "SGLang for CPU is ready in $target"
  exit 0
fi

new_enough() { command -v "$1" >/dev/null && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; }

candidates=("$root/.venv/bin/python" python3.11 python3.12 python3.13 python3)
[[ -z "${PYTHON:-}" ]] || candidates=("$PYTHON")
python=""
for candidate in "${candidates[@]}"; do
  if [[ -z "$python" ]] && new_enough "$candidate"; then python="$candidate"; fi
done
if [[ -z "$python" ]]; then
  echo "SGLang needs Python 3.11 or newer, and none of these is: ${candidates[*]} (PYTHON names another one)" >&2
  exit 3
fi

if [[ ! -x "$target/bin/python" ]]; then
  "$python" -m venv "$target"
elif ! new_enough "$target/bin/python"; then
  "$python" -m venv --clear "$target"
fi
with_deps="$(mktemp)"
trap 'rm -f "$with_deps"' EXIT
grep -vE '^(#|sglang=|xgrammar=)' "$versions" >"$with_deps"
mapfile -t bare < <(grep -E '^(sglang|xgrammar)=' "$versions")

if [[ -x "$root/.venv/bin/uv" ]]; then # uv reads UV_FIND_LINKS, not pip's variable
  export UV_FIND_LINKS="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}"
  install=("$root/.venv/bin/uv" pip install --quiet --compile-bytecode --python "$target/bin/python")
else
  install=("$target/bin/python" -m pip install --quiet)
fi
"${install[@]}" -r "$with_deps"
"${install[@]}" --no-deps "${bare[@]}"
"$target/bin/python" -c 'import importlib.metadata as m; print("SGLang", m.version("sglang"), "with torch", m.version("torch"))'
rm -f "$target"/.swe-rl-*
touch "$stamp"
