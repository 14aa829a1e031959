#!/usr/bin/env bash
# Make .venv with swe-rl and everything it needs. Safe and quick to run again; needs no root.
#
#   bash scripts/setup.sh [--extras LIST]      default: cpu,dev on machines without an NVIDIA GPU, gpu,dev with one
#
#   SWE_RL_PYTHON   interpreter to build the environment with (default: python3; 3.10 or newer)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

python=${SWE_RL_PYTHON:-python3}
command -v "$python" >/dev/null || die "no '$python' found: install Python 3.10 or newer, or set SWE_RL_PYTHON"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || die "$("$python" --version) is too old: 3.10 or newer is needed (SWE_RL_PYTHON)"
command -v git >/dev/null || die "git is needed: tasks are git repositories"

if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
  extras=gpu,dev backend=auto
else
  extras=cpu,dev backend=cpu
fi
while [ $# -gt 0 ]; do
  case $1 in
    --extras) extras=${2:?--extras needs a list, e.g. cpu,dev}; shift 2 ;;
    -h | --help) sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) die "unknown flag $1 (see --help)" ;;
  esac
done

# One set-up at a time; a second one waits and then finds the work done.
exec 9>.setup.lock
if command -v flock >/dev/null; then flock -w 1800 9 || die "another set-up holds .setup.lock for 30 minutes"; fi

stamp=.venv/.swe-rl-setup
wanted=$(cat pyproject.toml constraints/tested.txt scripts/setup.sh | "$python" -c \
  'import hashlib,sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest(), sys.version.split()[0], sys.argv[1], sys.argv[2])' "$extras" "$PWD")
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then exit 0; fi

echo "setup: building .venv ($extras) with $("$python" --version); about two minutes the first time"
if [ ! -x .venv/bin/python ]; then
  "$python" -m venv .venv || die "python's venv module does not work (on Debian: apt-get install python3-venv)"
fi
.venv/bin/python -m pip install --quiet --disable-pip-version-check uv || die "cannot install packages: is the package index reachable?"

# uv does not read pip's settings: hand them over, so that mirrors and local wheels are used.
pip_setting() { .venv/bin/python -m pip config list | sed -n "s/^global\.$1='\(.*\)'\$/\1/p"; }
export UV_FIND_LINKS=${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}
index=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-$(pip_setting index-url)}}
[ -z "$index" ] || export UV_DEFAULT_INDEX=$index
[ -z "${PIP_CERT:-}" ] || export SSL_CERT_FILE=${SSL_CERT_FILE:-$PIP_CERT}
torch_flags=(--torch-backend "$backend")
case "$UV_FIND_LINKS" in
  ?*) if ls "${UV_FIND_LINKS%% *}"/torch-*cpu*.whl >/dev/null 2>&1; then torch_flags=(); fi ;; # a CPU wheel lies here already
esac
constraints=()
[[ $extras == *gpu* ]] || constraints=(-c constraints/tested.txt)
# uv leaves compiling to Python, which may not write bytecode where this is set (as many images do).
compile=()
[ -z "${PYTHONDONTWRITEBYTECODE:-}" ] || compile=(--compile-bytecode)
# Empty arrays are spelled so that bash before 4.4 takes them.
.venv/bin/uv pip install --quiet --python .venv/bin/python ${compile[@]+"${compile[@]}"} ${torch_flags[@]+"${torch_flags[@]}"} \
  ${constraints[@]+"${constraints[@]}"} -e ".[$extras]" ||
  die "installing the packages failed (see above)"

# The small Python (pytest and nothing else) that local sandboxes show instead of this environment.
.venv/bin/python -c 'from swe_rl.sandbox.local_tools import ensure_tools_env; ensure_tools_env()' || die "the sandboxes' Python could not be made"

printf '%s' "$wanted" >"$stamp"
echo "setup: done; activate with: source .venv/bin/activate"
