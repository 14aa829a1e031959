# Brings the repository of the current folder to a task's starting state. Prints one line: "swe-rl-start done" or "... failed WHY".
# Set by starting_state.py: KIND (bug or r2e), PURPOSE (agent: hidden tests go), ALONE (1: the whole file system is the sandbox's),
# D (our folder). Files in D: bug.diff, hidden (test files that show the bug, NUL-separated).

set +aeuC +o pipefail # whatever the image's start-up files say
export GIT_NO_REPLACE_OBJECTS=1 GIT_AUTHOR_NAME=base GIT_AUTHOR_EMAIL=base@sandbox GIT_COMMITTER_NAME=base
export GIT_COMMITTER_EMAIL=base@sandbox GIT_AUTHOR_DATE='2000-01-01T00:00:00Z' GIT_COMMITTER_DATE='2000-01-01T00:00:00Z'
answer() { rm -rf -- "$D"; echo "swe-rl-start $*"; exit 0; }
g() { git -c core.fsmonitor=false -c core.hooksPath=/dev/null -c core.safecrlf=false -c gc.auto=0 -c safe.directory='*' "$@"; }
[ -d .git ] && g rev-parse -q --verify 'HEAD^{commit}' > /dev/null || answer failed "no git repository with a commit"

if [ "$KIND" = r2e ]; then
  [ "$PURPOSE" = agent ] || answer done
  for name in run_tests.sh r2e_tests install.sh; do
    g ls-files --error-unmatch -- "$name" > /dev/null 2>&1 || rm -rf -- "./$name"
  done
  [ -n "$ALONE" ] && rm -rf /r2e_tests /root/r2e_tests /root/run_tests.sh
  answer done
fi

# A checked-out branch of SWE-smith's mirror ends with the removal of the tests: they come back for grading.
if [ "$PURPOSE" != agent ] && [ "$(g log -1 --format=%s)" = 'Remove F2P Tests' ]; then
  g checkout -q HEAD~1 -- . 2> "$D/why" || answer failed "the removed tests do not come back: $(head -c 200 "$D/why" | tr '\n' ';')"
fi
fits() { g apply --check --whitespace=nowarn "$@" "$D/bug.diff" 2> "$D/why"; }
fuzzy() { patch -p1 --batch --forward --fuzz=5 "$@" -i "$D/bug.diff" > /dev/null 2>&1; }
if fits --reverse; then
  : # the bug is there already
elif fits; then
  g apply --whitespace=nowarn "$D/bug.diff" 2> "$D/why" || answer failed "$(head -c 300 "$D/why" | tr '\n' ';')"
elif fuzzy --dry-run; then
  fuzzy --no-backup-if-mismatch -r - || answer failed "patch(1) cannot apply the bug"
else
  answer failed "the bug's patch does not apply: $(head -c 300 "$D/why" | tr '\n' ';')"
fi
if [ "$PURPOSE" = agent ]; then
  while IFS= read -r -d '' file; do rm -f -- "./$file"; done < "$D/hidden"
fi
# One commit without a parent: the commits before it hold the fix. What they leave in the store is removed by hide_future.sh.
g add -u . || answer failed "the files cannot be staged"
while IFS=$'\t' read -r -d '' _ _ file; do # files that the bug makes
  [ -f "./$file" ] && g add -f -- ":(literal)$file"
done < <(g apply --numstat -z "$D/bug.diff" 2> /dev/null)
tree=$(g write-tree) && commit=$(g commit-tree "$tree" -m 'base') && g update-ref HEAD "$commit" ||
  answer failed "the starting state cannot be committed"
answer done
