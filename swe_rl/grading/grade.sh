# The whole grading of one patch, as one command inside a fresh sandbox, with the repository as the current folder.
# Set by evaluate.py before this text: D (our folder, relative), BASE (commit), RUN (pytest or script), PY (interpreter or '').
# Files in D: bundle.tar, which holds secrets (N: a word that starts every line meant for the grader; END: the exit code that
# says "came to its end"), word1 ... (for pytest_session_proof.py), agent.diff, agent-lf.diff (CRLF removed; optional),
# agent-plain.diff and agent-lf-plain.diff (hunks alone, for patch(1); may be empty), test.diff, touched (files of agent.diff,
# NUL-separated), helpers (those of them in folders of the graders' tests), pathspecs (the graders' files), remove (files that
# test.diff deletes).

set +aeuC +o pipefail # whatever the image's start-up files say
say() { printf '\n%s %s\n' "$N" "$*"; }
stop() { say "$@"; rm -rf -- "$D"; exit "$END"; }
clock() { echo "${EPOCHREALTIME:-$(date +%s)}"; } # the former only in bash 5
began=$(clock)

export GIT_NO_REPLACE_OBJECTS=1 GIT_OPTIONAL_LOCKS=0
here=$PWD
# The secrets come in a file that is gone before any code under test runs: this command's own text can be read by that code.
tar -xf "$D/bundle.tar" -C "$D" && . "$D/secrets" || exit 1
rm -f -- "$D/secrets" "$D/bundle.tar"
D=$here/$D
g() { git -c core.fsmonitor=false -c core.hooksPath=/dev/null -c core.safecrlf=false -c core.quotePath=false -c safe.directory='*' "$@"; }
[ -n "$BASE" ] && g cat-file -e "$BASE^{commit}" 2>/dev/null || BASE=HEAD
# Where there is nothing to apply it to, that says nothing about the patch. Below the root git would leave out files.
g cat-file -e "$BASE^{tree}" 2> /dev/null || stop unfit "the base commit $BASE cannot be read in $here"
[ -z "$(g rev-parse --show-prefix 2> /dev/null)" ] || stop unfit "$here is not the root of its repository"

# What lies beside the graders' tests is theirs, too (helpers that they import, files that they read): kept as it is before
# the patch, to be put back. New files stay but for those that Python would import in the place of one that is there.
declare -A beside=()
while IFS= read -r -d '' file; do
  case ${file##*/} in
    __init__.*) old=${file%/*} && [ -d "./$old" ] || old=$old.py ;; # a folder of tests that turns into a package is another one
    *.so | *.pyd) old=${file##*/} old=${file%/*}/${old%%.*}.py ;;
    *) old= ;;
  esac
  if [ -L "./$file" ] || [ -f "./$file" ]; then
    beside[$file]=$D/kept${#beside[@]}
    cp -pP -- "./$file" "${beside[$file]}" || stop infra "no place to keep the tests' helpers"
  elif [ -n "$old" ] && [ -e "./$old" ]; then
    beside[$file]=
  fi
done < "$D/helpers"
put_back() {
  local file folder number=0 found=
  while IFS= read -r -d '' file; do
    if [ -n "${beside[$file]+set}" ]; then
      rm -rf -- "./$file"
      folder=$file
      while [ -n "${beside[$file]}" ] && [ "$folder" != "${folder%/*}" ]; do # a file in the place of a folder
        folder=${folder%/*}
        [ -d "./$folder" ] || rm -f -- "./$folder"
      done
      [ -z "${beside[$file]}" ] || { mkdir -p -- "./${file%/*}" && cp -pP -- "${beside[$file]}" "./$file"; } ||
        stop infra "the tests' helpers cannot be put back"
      found="$found $number"
    fi
    number=$((number + 1))
  done < "$D/helpers"
  [ -z "$found" ] || say helpers "$found"
}

# 1. The agent's patch: as it is; on files first put back to the base; by three-way merge; by patch(1) with a little fuzz.
restore_touched() {
  while IFS= read -r -d '' file; do
    rm -rf -- "./$file"
    g cat-file -e "$BASE:$file" 2>/dev/null && g -c advice.detachedHead=false restore --source="$BASE" --worktree -- ":(literal)$file"
  done < "$D/touched"
}
declare -A named=()
while IFS= read -r -d '' file; do named[$file]=1; done < "$D/touched"
# Policy judged the files that we read in the patch: git must not read others.
same_files() {
  local line
  while IFS= read -r -d '' line; do
    line=${line#*$'\t'} line=${line#*$'\t'}
    [ -n "${named[$line]}" ] || stop rejected "git reads a file in the patch that its headers do not name so: $line"
  done < <(g apply --numstat -z "$1" 2> /dev/null)
}
try_apply() {
  diff=$1 plain=${1%.diff}-plain.diff
  # Behind a section that it can read, git drops a binary one that it cannot, says "error:" and ends with 0.
  LC_ALL=C g apply --numstat "$diff" > /dev/null 2> "$D/why"
  grep -q '^error: corrupt binary patch' "$D/why" && return 1
  same_files "$diff"
  g apply --whitespace=nowarn "$diff" 2> "$D/why" && { how=git-apply; return; }
  restore_touched 2>/dev/null
  g apply --whitespace=nowarn "$diff" 2> "$D/why" && { how=git-apply-on-base; return; }
  cp "$D/why" "$D/first"
  GIT_INDEX_FILE="$D/three" g read-tree "$BASE" && GIT_INDEX_FILE="$D/three" g update-index -q --refresh >/dev/null
  GIT_INDEX_FILE="$D/three" g apply --whitespace=nowarn --3way "$diff" >/dev/null 2>&1 && { how=git-apply-3way; return; }
  restore_touched 2>/dev/null
  if [ -s "$plain" ] && patch -p1 --batch --forward --fuzz=3 --dry-run -i "$plain" >/dev/null 2>&1; then
    patch -p1 --batch --forward --fuzz=3 --no-backup-if-mismatch -r - -i "$plain" >/dev/null 2>&1 && { how=patch-fuzz; return; }
  fi
  mv "$D/first" "$D/why"
  return 1
}
how=none
if [ -s "$D/agent.diff" ]; then
  try_apply "$D/agent.diff" || { [ -f "$D/agent-lf.diff" ] && try_apply "$D/agent-lf.diff" && how="$how-without-cr"; } ||
    stop rejected "$(head -c 500 "$D/why" | tr '\n' ';')"
fi
say applied "$how"
put_back

# 2. The graders' files, from git's objects: base commit + test patch in an index of our own, then checked out and hashed.
export GIT_INDEX_FILE="$D/index"
g read-tree "$BASE" || stop infra "the index of the base commit cannot be written"
if [ -s "$D/test.diff" ] && ! g apply --cached --whitespace=nowarn "$D/test.diff" 2> "$D/why"; then
  # A check writes nothing: where it passes, the row is right and the disk is at fault.
  g apply --cached --check --whitespace=nowarn "$D/test.diff" > /dev/null 2>&1 && stop infra "the index of the test patch cannot be written"
  stop unfit "the test patch does not apply: $(head -c 300 "$D/why" | tr '\n' ';')"
fi
mapfile -t specs < "$D/pathspecs"
paths=() hashes=()
while IFS= read -r -d '' line; do
  [ "${line%% *}" = 120000 ] || [ "${line%% *}" = 160000 ] && continue
  rest=${line#* } path=${line#*$'\t'}
  paths+=("$path") hashes+=("${rest%% *}")
done < <(g ls-files -s -z -- "${specs[@]}")
while IFS= read -r -d '' file; do rm -rf -- "./$file"; done < "$D/remove"
if [ ${#paths[@]} -gt 0 ]; then
  printf '%s\0' "${paths[@]}" | g checkout-index -f -z --stdin || stop infra "the test files cannot be restored"
  mapfile -t found < <(printf '%s\n' "${paths[@]}" | g hash-object --stdin-paths 2>/dev/null)
  [ "${found[*]}" = "${hashes[*]}" ] || stop tampered "the test files are not the graders' after they were restored"
fi
unset GIT_INDEX_FILE
# Any later write changes the ctime, which nobody can set.
state() { [ ${#paths[@]} -eq 0 ] || stat -c '%n %i %s %z' -- "${paths[@]}" 2>&1; }
before=$(state)
# What interpreters start with and compiled leftovers are nobody's fix.
find . -path ./.git -prune -o \( -name sitecustomize.py -o -name usercustomize.py \) -print0 2>/dev/null |
  while IFS= read -r -d '' file; do g cat-file -e "$BASE:${file#./}" 2>/dev/null || rm -f -- "$file"; done

# 3. The tests. Our folder is gone before any code under test runs.
say tests "${#paths[@]} $began $(clock)"
if [ "$RUN" = pytest ]; then
  [ -n "$PY" ] || PY=$(command -v python || command -v python3)
  "$PY" -I "$D/pytest_runner.py" "$D/config.json"
else
  # A session of pytest says when it begins and how it ends (pytest_session_proof.py); other runners do not notice.
  proof=$(mktemp -d)
  export SWE_RL_PROOF=$proof
  mv "$D"/word* "$proof" 2> /dev/null
  if [ -f "$D/pytest_session_proof.py" ]; then
    cp "$D/pytest_session_proof.py" "$proof/swe_rl_session.py"
    export SWE_RL_PYTHONPATH=${PYTHONPATH-} PYTHONPATH=$proof${PYTHONPATH:+:$PYTHONPATH} PYTEST_ADDOPTS="-p swe_rl_session"
  fi
  # From a descriptor, not a file that stays and not argv: the code under test cannot read the markers it would have to forge.
  bash -c 'IFS= read -r -d "" -u 7 script; exec 7<&-; rm -rf -- "$1"; shift; eval "$script"' bash "$D" 7< "$D/eval.sh"
fi
code=$?
rm -rf -- "$D" ${proof:+"$proof"}
# Whoever can still write to our output could print behind the end, and push the end out of what is kept of the output.
parent_of() { # PID -> $parent, 0 where there is none
  local key value
  parent=0
  while read -r key value; do [ "$key" = PPid: ] && { parent=$value; return; }; done < "/proc/$1/status"
}
writers() { # descriptors that can write to our output, of all processes but this shell and those above it
  local above=" $BASHPID $$ " parent fd pid key value
  parent_of $$
  while [ "$parent" -gt 0 ]; do above="$above$parent " && parent_of "$parent"; done
  for fd in $(find /proc/[0-9]*/fd -lname "${output//[/\\[}"); do
    pid=${fd#/proc/} pid=${pid%%/*}
    case $above in *" $pid "*) continue ;; esac
    while read -r key value; do [ "$key" = flags: ] && case $value in *[12]) echo "$pid" ;; esac; done < "${fd/\/fd\//\/fdinfo/}"
  done
}
if [ -p "/proc/$$/fd/1" ] && output=$(readlink "/proc/$$/fd/1"); then
  for _ in 1 2 3 4 5 6 7 8; do
    left=$(writers 2> /dev/null)
    [ -n "$left" ] || break
    kill -KILL $left 2> /dev/null
  done
fi
say done "$code"
[ "$before" = "$(state)" ] && say same || say changed
exit "$END"
