# The supervisor where supervisor.c cannot serve: PID 1 of a container, spoken to over the kept-open stdin and stdout of
# the engine's attach call.
# As PID 1 it cannot be killed from inside, adopts and reaps orphans, and `kill -KILL -1` ends all others atomically.
# It forks only while there is room for processes: a failed fork would end it, and the container with it.
# Where it does not answer, another is started beside it by the engine's exec call; that one ends with its stream.
#
#   in:   hello ID\n
#         run ID TIMEOUT_MS HEAD TAIL PREAMBLE_BYTES COMMAND_BYTES READER\n, then the bytes of both, then ID\n (without it
#             the frame is not whole, and nothing is run); READER is `builtin` or, for a command that is long or holds
#             NUL, which bash's own read does not count, `head`
#   out:  ready ID\n
#         done ID RETURNCODE TIMED_OUT MS HEAD_BYTES TAIL_BYTES TOTAL_BYTES\n, then the bytes of head and tail
#
# A command's output goes through a pipe into files (the first HEAD, whole KiB, and the last TAIL bytes), never onto the
# control stream, so nothing that is printed can be taken for an answer.
# Arguments: FOLDER (a private tmpfs) PIDS_LIMIT RUNNER DUMP (what bash runs for a command, and to print what login adds)

exec 2>/dev/null
folder=$1 pids_limit=$2 runner=$3 dump=$4 drain= drain_head= login=
umask 022
if [[ -v LC_ALL ]]; then locale=("LC_ALL=$LC_ALL"); else locale=(-u LC_ALL); fi
LC_ALL=C # lengths are bytes
# Signals that bash would end on; a trap, unlike ignoring them, is not handed down to commands.
trap : HUP INT QUIT ILL TRAP ABRT FPE BUS SEGV SYS PIPE ALRM TERM XCPU XFSZ VTALRM PROF IO USR1 USR2
cd "$folder" || { mkdir -p "$folder" && cd "$folder"; } || exit 1
mkfifo never output middle && exec 4<>never || exit 1

milliseconds() { # -> $now; bash before 5.0 has whole seconds only
    if [[ ${EPOCHREALTIME-} ]]; then now=$((${EPOCHREALTIME/[.,]/} / 1000)); else now=$((SECONDS * 1000)); fi
}

nap() { # nap MS: sleep without a process (nothing is ever written to `never`)
    local fraction=00$1
    read -r -t "$(($1 / 1000)).${fraction: -3}" -u 4
}

await() { # await PID UNTIL_MS [TEND]: 0 once the child is gone, 1 at the deadline; looks often at first, then more rarely
    local began slice
    milliseconds
    began=$now
    while kill -0 "$1"; do
        ((now < $2)) || return 1
        slice=$(((now - began) / 8 + 1))
        ((slice < 100)) || slice=100
        nap $((now + slice <= $2 ? slice : $2 - now))
        ${3-} # called after each look
        milliseconds
    done
    return 0
}

processes() { # -> $count, as the pids limit counts them
    read -r count </sys/fs/cgroup/pids.current || read -r count </sys/fs/cgroup/pids/pids.current || count=0
}

make_room() { # left-over daemons must not starve the next command of processes
    local count try
    for ((try = 0; try < 50; try++)); do
        processes
        ((count > pids_limit / 2)) || return 0
        kill -KILL -1
        nap 20
    done
}

end_session() { # end_session SID: kill what is left of a command that has ended; a daemon (new session) may stay
    local stat line found try count
    kill -KILL -- "-$1"
    processes
    kill -0 "$drain" && ((count--)) # looked at after counting: if it is alive now, it was counted
    ((count <= others)) && alone=1 && return # nobody but this shell
    alone=
    for ((try = 0; try < 50; try++)); do
        found=
        for stat in /proc/[0-9]*/stat; do
            line=
            IFS= read -r -d '' line <"$stat"
            set -- "$1" ${line##*) } # SID STATE PPID PGRP SESSION ...
            [[ ${5-} == "$1" && $2 != [ZX] ]] && found=1 && kill -KILL "${stat//[!0-9]/}"
        done
        [[ $found ]] || return 0
    done
    kill -KILL -1
}

# Output. A file size limit makes `cat` stop at the head's end; unlike `head` and `dd` it writes all it has read at once, so
# that nothing is lost between two readers. One `cat` serves command after command for as long as nobody else can hold
# the pipe. (A shell that reads output itself with `read -t` loses a byte now and then: one read when the time ran out.)

prepare() { # prepare HEAD: a pipe that no process knows (5 reads, 7 writes) and its reader
    local count
    end_drain
    processes
    [[ -p output && -p middle ]] && ((count <= others)) || { rm -rf output middle && mkfifo output middle; }
    exec 5<&- 7>&- 6<>output 5<output 7>output 6>&-
    : >head >tail >passed
    drain_head=$1 overflown='' ended=''
    start_cat
}

start_cat() {
    (ulimit -c 0 && ulimit -f $((drain_head / 1024)) && exec cat >>head) <&5 4>&- 5<&- 7>&- &
    drain=$!
}

end_drain() {
    if [[ $drain ]]; then
        kill -KILL "$drain"
        wait "$drain"
        drain=
    fi
}

tend_drain() { # it may have ended: at the head's end, killed by the command or, the pipe given up, at the output's end
    local count status
    if [[ $ended ]] || kill -0 "$drain"; then return; fi
    processes
    ((count > pids_limit - 8)) && return
    wait "$drain"
    status=$?
    if ((status == 153)) && [[ ! $overflown ]]; then # 128 + SIGXFSZ: the rest goes through `tail`; dd reports how much
        overflown=1
        exec 7>&-
        tail -c "$drain_tail" <middle >tail 4>&- 5<&- 7>&- &
        tail_pid=$!
        dd bs=65536 <&5 >middle 2>passed 4>&- 5<&- 7>&- &
        drain=$!
    elif ((status == 1)) || [[ $overflown ]]; then # 1: it cannot write any more
        ended=1 drain=
    else
        start_cat
    fi
}

idle() { # whether the reader has written away all that was in the pipe: it sleeps only when it has nothing to do
    local stat
    read -r -t 0 -u 5 && return 1
    [[ $overflown ]] && read -r -t 0 -u 6 6<>middle && return 1
    IFS= read -r stat <"/proc/$drain/stat" && [[ ${stat##*) } == S* ]]
}

finish_output() { # all that was printed up to now; a daemon that still holds the pipe must not hold the answer
    local until calm=0
    milliseconds
    until=$((now + 10000)) # for a daemon that prints without end
    while [[ ! $ended ]] && ((now < until)); do
        tend_drain
        if idle; then
            ((++calm == 3)) || [[ ! $overflown ]] && break # `tail` and `dd` pass on in turns
        else
            calm=0
        fi
        nap 1
        milliseconds
    done
    [[ $overflown ]] || return
    [[ $ended ]] || { kill -USR1 "$drain" && nap 20; } # dd reports
    end_drain
    milliseconds
    await "$tail_pid" $((now + 3000)) || kill -KILL "$tail_pid"
}

reuse() { # the reader for the next command, if no process can hold the pipe
    [[ $alone && ! $overflown && ! $ended && -p output ]] && kill -0 "$drain" && if [[ -s head ]]; then : >head; fi
}

size() { # size FILE -> $bytes, and the bytes themselves in $text where builtins can print them (small, no NUL)
    bytes=0 text=
    [[ -s $1 ]] || return
    if IFS= read -r -d '' -n 65536 text <"$1" || ((${#text} == 65536)); then bytes=$(wc -c <"$1") text=; else bytes=${#text}; fi
}

# What a login shell adds (conda and the like) is taken once, and again when a start-up file is as new as the copy: file
# times have the grain of the clock's ticks, so one of the same tick may have been changed after it.

outdated='[[ ! -f login'
for file in /etc/profile /etc/profile.d{,/*.sh} /etc/bash.bashrc ~/.{bash_profile,bash_login,profile,bashrc} ${BASH_ENV-}; do
    printf -v outdated '%s || -e %q && ! login -nt %q' "$outdated" "$file" "$file"
done
eval "outdated() { $outdated ]]; }"

login() {
    local file child
    [[ $login ]] && ! outdated && return
    : >login.new
    env "${locale[@]}" setsid "$BASH" -lc "$dump" 9>login.new </dev/null >/dev/null 4>&- 5<&- 7>&- &
    child=$!
    milliseconds
    await "$child" "$((now + (${#login} ? 10000 : 60000)))" # later ones are commands' own work: they may take less
    end_session "$child"
    wait "$child"
    while IFS= read -r file; do printf '%s\n' "$file"; done <login.new >login
    login=taken
}

run() {
    local id=$1 timeout=$2 head=$3 drain_tail=$4 preamble='' command=''
    local child started rc expired=0 tail=0 total=0 bytes text line tail_pid
    IFS= read -r -N "$5" preamble
    if [[ $7 == head ]]; then head -c "$6" >command; else IFS= read -r -N "$6" command && printf %s "$command" >command; fi
    IFS= read -r -N $((${#id} + 1)) line
    [[ $line == "$id"$'\n' ]] || return # its sender died while sending it
    [[ $drain_head == "$head" && -p output ]] && kill -0 "$drain" || prepare "$head"
    login
    milliseconds
    started=$now
    BASH_ENV= setsid "$BASH" --norc --noprofile -c "$runner" bash "$preamble" </dev/null 3<command >&7 2>&1 4>&- 5<&- 7>&- &
    child=$!
    await "$child" $((started + timeout)) tend_drain || expired=1
    end_session "$child"
    wait "$child"
    rc=$?
    finish_output
    ((expired)) && rc=124 && kill -KILL -1
    [[ $alone ]] || make_room
    if [[ -s tail ]]; then
        tail=$(wc -c <tail) total=$tail
        while read -r line; do [[ $line == *bytes* ]] && total=${line%% *}; done <passed
    fi
    size head
    milliseconds
    printf 'done %s %s %s %s %s %s %s\n' "$id" "$rc" "$expired" $((now - started)) "$bytes" "$tail" $((bytes + total))
    if [[ $text ]]; then printf %s "$text"; elif ((bytes)); then cat head; fi
    if ((tail)); then cat tail; fi
    reuse || prepare "$head"
}

others=1 # processes that are always there: this shell, and beside it what the first one leaves
if (($$ != 1)); then
    kill -KILL -1
    nap 100
    processes
    others=$count
fi
while :; do
    read -r verb arguments || { # nobody will write any more
        (($$ == 1)) || exit
        nap 1000 # wait without spinning
        continue
    }
    case $verb in
        hello) printf 'ready %s\n' "$arguments" ;;
        run) run $arguments ;;
    esac
done
