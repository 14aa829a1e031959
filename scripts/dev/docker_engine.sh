#!/bin/bash
# A private Docker Engine for tests and development: own data root, own socket, no bridge, nothing shared with the
# machine's engine, so that several can run beside one another as several "nodes" and end without a trace.
#
#   docker_engine.sh install                     install engine and bubblewrap by apt where they are missing (root)
#   docker_engine.sh up NAME [--root DIR] [--owner PID] [--podman]
#                                                start it (or find it running); prints DOCKER_HOST=unix://...
#                                                --owner: the engine goes down by itself when process PID ends
#                                                --podman: Podman's compatible API in place of a Docker Engine
#   docker_engine.sh env NAME [--root DIR]       print DOCKER_HOST=... of a running engine, else exit 1
#   docker_engine.sh down NAME [--root DIR]      remove its containers, end it by pid, unmount, delete its files
#
# DIR defaults to $TMPDIR/swe-rl-docker-NAME. Needs root; SWE_RL_STORAGE_DRIVER overrides overlay2 (vfs works anywhere).
set -euo pipefail

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }
warn() { echo "docker_engine.sh: $*" >&2; }
fail() { warn "$*"; exit 1; }

install_engine() {
    command -v dockerd >/dev/null && command -v bwrap >/dev/null && return 0
    [ "$(id -u)" = 0 ] || fail "no dockerd on this machine and not root: install docker.io and bubblewrap first"
    command -v apt-get >/dev/null || fail "no dockerd and no apt-get: install a Docker Engine by hand"
    export DEBIAN_FRONTEND=noninteractive
    local apt=(apt-get -qq -o DPkg::Lock::Timeout=180)
    local log status=0
    log=$(mktemp)
    { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends docker.io bubblewrap; } >"$log" 2>&1 || status=$?
    if ! { command -v dockerd && command -v bwrap; } >/dev/null; then
        tail -20 "$log" >&2
        fail "apt-get could not install docker.io and bubblewrap (exit code $status; log: $log)"
    fi
    # The package's start-up script wants an init system: on a machine without one the files are there, and that will do.
    if [ "$status" = 0 ]; then rm -f "$log"; else warn "apt-get ended with $status, yet dockerd and bwrap are there (log: $log)"; fi
}

answers() { curl -fsS -m 2 --unix-socket "$ROOT/docker.sock" http://engine/_ping >/dev/null 2>&1; }

gone() {  # whether process $1 has ended; one that nobody has waited for yet counts
    local state
    state=$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) || return 0
    [ -z "$state" ] || [ "${state:0:1}" = Z ]
}

end() {  # end PID SECONDS: SIGTERM, after SECONDS (0 = at once) SIGKILL; fails where the process outlives that
    local i
    for ((i = 0; i < $2 * 10; i++)); do
        gone "$1" && return 0
        [ "$i" != 0 ] || kill -TERM "$1" || gone "$1" || fail "process $1 cannot be ended"
        sleep 0.1
    done
    gone "$1" || kill -KILL "$1" || gone "$1" || fail "process $1 cannot be killed"
    for ((i = 0; i < 100; i++)); do
        gone "$1" && return 0
        sleep 0.1
    done
    fail "process $1 is still there 10 s after SIGKILL; its files stay in $ROOT"
}

launch() {  # launch COMMAND...: the engine in a session of its own; fails where it does not answer within 30 s
    setsid "$@" </dev/null >>"$ROOT/engine.log" 2>&1 9>&- &
    local pid=$! i
    echo "$pid" >"$ROOT/engine.pid"
    for ((i = 0; i < 300; i++)); do
        answers && return 0
        gone "$pid" && return 1
        sleep 0.1
    done
    end "$pid" 0
    return 1
}

launch_docker() {  # launch_docker DRIVER
    launch dockerd -H "unix://$ROOT/docker.sock" --data-root "$ROOT/root" --exec-root "$ROOT/exec" -p "$ROOT/docker.pid" \
        --storage-driver "$1" --bridge=none --iptables=false --ip6tables=false --ip-forward=false --shutdown-timeout 1
}

launch_podman() {
    command -v podman >/dev/null || fail "no podman on this machine"
    # Podman asks for more files and processes than a confined root may give; crun refuses hybrid cgroups, runc does not.
    local runtime files processes
    runtime=$(command -v runc || command -v crun) || fail "podman needs runc or crun"
    files=$(ulimit -Hn)
    processes=$(printf '%s\n' "$(ulimit -Hu)" "$(cat /proc/sys/kernel/pid_max)" | grep -v unlimited | sort -n | head -1)
    cat >"$ROOT/containers.conf" <<CONF
[containers]
default_ulimits = ["nofile=$files:$files", "nproc=$processes:$processes"]
[engine]
runtime = "$(basename "$runtime")"
cgroup_manager = "cgroupfs"
CONF
    # In a folder of its own: conmon writes a file named oom where it was started when a container runs out of memory.
    CONTAINERS_CONF=$ROOT/containers.conf launch env -C "$ROOT" podman --root "$ROOT/root" --runroot "$ROOT/exec/run" --tmpdir "$ROOT/exec/tmp" \
        system service --time=0 "unix://$ROOT/docker.sock"
}

up() {
    [ -n "$PODMAN" ] || install_engine
    [ "$(id -u)" = 0 ] || fail "up needs root"
    [ "${#ROOT}" -lt 60 ] || fail "$ROOT is too long for the engine's sockets (limit 107 bytes): choose a shorter --root"
    mkdir -p "$ROOT"
    exec 9>"$ROOT/lock"
    flock -w 120 9 || fail "another process keeps $ROOT/lock"
    if ! answers; then
        rm -f "$ROOT/docker.pid"
        if [ -n "$PODMAN" ]; then launch_podman; else launch_docker "${SWE_RL_STORAGE_DRIVER:-overlay2}" || launch_docker vfs; fi ||
            { tail -5 "$ROOT/engine.log" >&2; fail "the engine did not start"; }
    fi
    if [ -n "$OWNER" ]; then
        setsid "$0" watch "$NAME" --root "$ROOT" --owner "$OWNER" </dev/null >/dev/null 2>&1 9>&- &
    fi
    exec 9>&-
    print_env
}

print_env() { answers || fail "no engine answers at $ROOT/docker.sock"; echo "DOCKER_HOST=unix://$ROOT/docker.sock"; }

engine_pid() {  # of this root's engine, where it runs: a number in an old file may be another process by now
    local pid
    [ -s "$ROOT/engine.pid" ] || return 0
    pid=$(cat "$ROOT/engine.pid")
    if ! gone "$pid" && grep -qsF "$ROOT/docker.sock" "/proc/$pid/cmdline"; then echo "$pid"; fi
}

own_processes() {  # pids of its shims and runtimes (its folder is in their command line) and of what runs in its containers
    local proc
    for proc in /proc/[0-9]*; do
        if [ "$proc" != /proc/$$ ] && { grep -qsF "$ROOT/exec/" "$proc/cmdline" ||
            awk -v files="$ROOT/root/" '$5 == "/" && index($0, files) { found = 1 } END { exit !found }' "$proc/mountinfo" 2>/dev/null; }; then
            echo "${proc#/proc/}"
        fi
    done
}

down() {
    [ -d "$ROOT" ] || return 0
    local ids pid mount mounts
    if answers; then
        ids=$(timeout 10 docker -H "unix://$ROOT/docker.sock" ps -aq) || warn "containers could not be listed: they end with the engine"
        # A container that will not go by the engine's hand loses its processes below, and its files with $ROOT.
        [ -z "${ids:-}" ] || timeout 60 docker -H "unix://$ROOT/docker.sock" rm -f $ids >/dev/null || warn "some containers were not removed"
    fi
    pid=$(engine_pid)
    [ -z "$pid" ] || end "$pid" 10
    for pid in $(own_processes); do end "$pid" 0; done
    mounts=$(awk -v root="$ROOT/" 'index($2, root) == 1 { print $2 }' /proc/mounts | sort -r)
    for mount in $mounts; do umount -l "$mount" || fail "cannot unmount $mount; files stay in $ROOT"; done
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
NAME=$2 ROOT=${TMPDIR:-/tmp}/swe-rl-docker-$2 OWNER= PODMAN=
shift 2
while [ $# -gt 0 ]; do
    case $1 in
        --root) ROOT=$(realpath -m "${2:?--root needs a folder}"); shift ;;
        --owner) OWNER=${2:?--owner needs a pid}; shift ;;
        --podman) PODMAN=1 ;;
        *) usage >&2; exit 2 ;;
    esac
    shift
done
case $COMMAND in
    up) up ;;
    down) down ;;
    env) print_env ;;
    watch) watch ;;
esac
