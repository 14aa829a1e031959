#!/bin/bash
# A private Docker Engine for tests and development: own data root, own socket, no bridge, nothing shared with the
# machine's engine, so that several can run beside one another as several "nodes" and end without a trace.
#
#   docker_engine.sh install                     install engine and bubblewrap by apt where they are missing (root)
#   docker_engine.sh up NAME [--root DIR] [--owner PID]
#                                                start it (or find it running); prints DOCKER_HOST=unix://...
#                                                --owner: the engine goes down by itself when process PID ends
#   docker_engine.sh env NAME [--root DIR]       print DOCKER_HOST=... of a running engine, else exit 1
#   docker_engine.sh down NAME [--root DIR]      remove its containers, end it by pid, unmount, delete its files
#
# DIR defaults to $TMPDIR/swe-rl-docker-NAME. Needs root; SWE_RL_STORAGE_DRIVER overrides overlay2 (vfs works anywhere).
set -euo pipefail

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }
fail() { echo "docker_engine.sh: $*" >&2; exit 1; }

install_engine() {
    command -v dockerd >/dev/null && command -v bwrap >/dev/null && return 0
    [ "$(id -u)" = 0 ] || fail "no dockerd on this machine and not root: install docker.io and bubblewrap first"
    command -v apt-get >/dev/null || fail "no dockerd and no apt-get: install a Docker Engine by hand"
    export DEBIAN_FRONTEND=noninteractive
    local apt=(apt-get -qq -o DPkg::Lock::Timeout=180)
    # The package's start-up script wants an init system; a machine without one must still get the files.
    local log
    log=$(mktemp)
    { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends docker.io bubblewrap; } >"$log" 2>&1 || true
    if ! { command -v dockerd && command -v bwrap; } >/dev/null; then
        tail -20 "$log" >&2
        fail "apt-get could not install docker.io and bubblewrap (log: $log)"
    fi
    rm -f "$log"
}

answers() { curl -fsS -m 2 --unix-socket "$ROOT/docker.sock" http://engine/_ping >/dev/null 2>&1; }

alive() { [ -s "$ROOT/docker.pid" ] && kill -0 "$(cat "$ROOT/docker.pid")" 2>/dev/null; }

launch() {  # launch DRIVER: dockerd in a session of its own
    setsid dockerd -H "unix://$ROOT/docker.sock" --data-root "$ROOT/root" --exec-root "$ROOT/exec" -p "$ROOT/docker.pid" \
        --storage-driver "$1" --bridge=none --iptables=false --ip6tables=false --ip-forward=false --shutdown-timeout 1 \
        </dev/null >>"$ROOT/dockerd.log" 2>&1 9>&- &
    local pid=$! i
    for ((i = 0; i < 300; i++)); do
        answers && return 0
        kill -0 "$pid" 2>/dev/null || return 1
        sleep 0.1
    done
    kill -KILL "$pid"
    return 1
}

up() {
    install_engine
    [ "$(id -u)" = 0 ] || fail "up needs root"
    [ "${#ROOT}" -lt 60 ] || fail "$ROOT is too long for the engine's sockets (limit 107 bytes): choose a shorter --root"
    mkdir -p "$ROOT"
    exec 9>"$ROOT/lock"
    flock -w 120 9 || fail "another process keeps $ROOT/lock"
    if ! answers; then
        rm -f "$ROOT/docker.pid"
        launch "${SWE_RL_STORAGE_DRIVER:-overlay2}" || launch vfs || { tail -5 "$ROOT/dockerd.log" >&2; fail "dockerd did not start"; }
    fi
    if [ -n "$OWNER" ]; then
        setsid "$0" watch "$NAME" --root "$ROOT" --owner "$OWNER" </dev/null >/dev/null 2>&1 9>&- &
    fi
    exec 9>&-
    print_env
}

print_env() { answers || fail "no engine answers at $ROOT/docker.sock"; echo "DOCKER_HOST=unix://$ROOT/docker.sock"; }

own_processes() {  # pids of shims and runtimes that carry this engine's own folder in their command line
    local cmd
    for cmd in /proc/[0-9]*/cmdline; do
        local pid=${cmd//[!0-9]/}
        [ "$pid" != $$ ] && grep -qsF "$ROOT/exec/" "$cmd" && echo "$pid"
    done
    return 0
}

down() {
    [ -d "$ROOT" ] || return 0
    local i ids pid
    if answers; then
        ids=$(timeout 10 docker -H "unix://$ROOT/docker.sock" ps -aq 2>/dev/null || true)
        [ -z "$ids" ] || timeout 60 docker -H "unix://$ROOT/docker.sock" rm -f $ids >/dev/null 2>&1 || true
    fi
    if alive; then
        pid=$(cat "$ROOT/docker.pid")
        kill -TERM "$pid"
        for ((i = 0; i < 100; i++)); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
        kill -KILL "$pid" 2>/dev/null || true
    fi
    for pid in $(own_processes); do kill -KILL "$pid" 2>/dev/null || true; done
    awk -v root="$ROOT/" 'index($2, root) == 1 { print $2 }' /proc/mounts | sort -r | while read -r mount; do
        umount -l "$mount" || true
    done
    rm -rf "$ROOT"
}

watch() {
    while kill -0 "$OWNER" 2>/dev/null && [ -d "$ROOT" ]; do sleep 1; done
    down
}

COMMAND=${1:-}
case $COMMAND in
    install) install_engine; exit ;;
    up | down | env | watch) ;;
    -h | --help | help) usage; exit ;;
    *) usage >&2; exit 2 ;;
esac
[[ ${2:-} =~ ^[a-zA-Z0-9_.-]+$ ]] || { usage >&2; exit 2; }
NAME=$2 ROOT=${TMPDIR:-/tmp}/swe-rl-docker-$2 OWNER=
shift 2
while [ $# -gt 0 ]; do
    case $1 in
        --root) ROOT=$(realpath -m "${2:?--root needs a folder}") ;;
        --owner) OWNER=${2:?--owner needs a pid} ;;
        *) usage >&2; exit 2 ;;
    esac
    shift 2
done
case $COMMAND in
    up) up ;;
    down) down ;;
    env) print_env ;;
    watch) watch ;;
esac
