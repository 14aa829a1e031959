#!/bin/bash
# Pull the images of a dataset onto exec nodes (or this machine's engine), a few at a time, with progress and retries.
#
#   data/pull_swe_images.sh TASKS.jsonl [--servers URL,URL] [--parallel N] [--registry PREFIX] [--timeout S]
#   TASKS      any dataset form that `swe-rl data inspect` reads, or a text file with one image a line (*.txt)
#   --train FILE, --image-list FILE   in place of TASKS: a dataset, or one image a line (default: TRAIN, IMAGE_LIST)
#   --limit    only the images of the first tasks or lines (default: N, else all)
#   --servers  exec servers (default: SWE_EXEC_SERVER_URLS); without any, the engine of this machine: DOCKER_HOST
#   --parallel pulls at once per server (default 3); SWE_SERVER_TOKEN is sent to the servers
#   --registry put before names without a registry of their own, as a run does (default: SWE_DOCKER_REGISTRY)
#   --image-template NAME   image of tasks that name none, as for a run (default: SWE_IMAGE_TEMPLATE)
#   --registry-config FILE   a docker config.json with credentials, for the engine of this machine (servers have theirs)
#   --timeout  seconds to wait for one image, retries included (default 3600); a server goes on pulling
# Exit code 1 when some image could not be pulled; those are listed. Rate limits of a registry are waited out; one that
# cannot be reached is given up after a minute.
set -euo pipefail
case ${1:-${IMAGE_LIST:-${TRAIN:-}}} in
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit ;;
    '') sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2 ;;
esac
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
[ -x "$python" ] || python=python3
exec "$python" -m swe_rl.sandbox.container.pull_dataset "$@"
