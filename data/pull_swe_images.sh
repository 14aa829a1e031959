#!/bin/bash
# Pull the images of a dataset onto exec nodes (or this machine's engine), a few at a time, with progress and retries.
#
#   data/pull_swe_images.sh TASKS.jsonl [--servers URL,URL] [--parallel N] [--prefix REGISTRY/]
#   TASKS      any dataset form that `swe-rl data inspect` reads, or a text file with one image a line (*.txt)
#   --servers  exec servers (default: SWE_EXEC_SERVER_URLS); without any, the docker command of this machine is used
#   --parallel pulls at once per server (default 3); SWE_SERVER_TOKEN is sent to the servers
# Exit code 1 when some image could not be pulled; those are listed. Rate limits of a registry are waited out.
set -euo pipefail
case ${1:-} in
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit ;;
    '') sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2 ;;
esac
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
[ -x "$python" ] || python=python3
exec "$python" -m swe_rl.sandbox.container.pull_dataset "$@"
