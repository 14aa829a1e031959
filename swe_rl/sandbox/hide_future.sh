# Makes git history after the base commit unreachable in the repository of the current folder, and proves it.
# Set by hardening.py: BASE (commit, or '' for HEAD). Prints one line: "swe-rl-history STATE OBJECTS_REMOVED HEAD".

set +aeuC +o pipefail # whatever the image's start-up files say
export GIT_NO_REPLACE_OBJECTS=1 GIT_AUTHOR_NAME=base GIT_AUTHOR_EMAIL=base@sandbox GIT_COMMITTER_NAME=base
export GIT_COMMITTER_EMAIL=base@sandbox GIT_AUTHOR_DATE='2000-01-01T00:00:00Z' GIT_COMMITTER_DATE='2000-01-01T00:00:00Z'
answer() { echo "swe-rl-history $*"; exit 0; }
g() { git -c core.fsmonitor=false -c core.hooksPath=/dev/null -c gc.auto=0 -c safe.directory='*' "$@"; }
[ -d .git ] || answer failed "no .git folder"
head=$(g rev-parse -q --verify 'HEAD^{commit}') || answer failed "no HEAD commit"
[ -n "$BASE" ] && base=$(g rev-parse -q --verify "$BASE^{commit}") || base=$head

stored() { g cat-file --batch-all-objects --unordered --batch-check='%(objectname)' | sort -u; }
# What stays: HEAD's history and what the index holds. Everything else in the store would be somebody's future.
kept() { g rev-list --objects --indexed-objects --no-object-names HEAD | sort -u; }
# Changes that lie in the image's work tree are part of its state, too.
g update-index -q --refresh > /dev/null 2>&1
g diff-files --quiet || g add -u . 2> /dev/null
tree=$(g write-tree 2> /dev/null) || tree=$(g rev-parse "$head^{tree}")
branch=$(g symbolic-ref -q HEAD)
others=$(g for-each-ref --format='%(refname)' | grep -vxF "${branch:-none}" | wc -l)
before=$(stored | wc -l)
same=$([ "$tree" = "$(g rev-parse "$head^{tree}")" ] && echo 1)
if [ "$head" = "$base" ] && [ -n "$same" ] && [ "$others" -eq 0 ] && [ ! -e .git/objects/info/alternates ] && [ -z "$(g remote)" ] &&
  [ ! -d .git/worktrees ] && [ "$before" -eq "$(kept | wc -l)" ]; then
  rm -rf .git/logs .git/ORIG_HEAD .git/FETCH_HEAD
  answer clean 0 "$head"
fi

# A state beyond the base keeps its files (they are checked out anyway), not the commits that led to it.
if [ "$head" != "$base" ] || [ -z "$same" ]; then
  new=$(g commit-tree "$tree" -p "$base" -m 'state of the image') && g update-ref HEAD "$new" || answer failed "squash"
fi
g for-each-ref --format='%(refname)' | grep -vxF "${branch:-none}" | sed 's/^/delete /' | g update-ref --stdin || answer failed "refs"
for remote in $(g remote); do g config --remove-section "remote.$remote" 2>/dev/null; done
rm -rf .git/logs .git/worktrees .git/rr-cache .git/rebase-apply .git/rebase-merge .git/info/grafts .git/refs/original
rm -rf .git/ORIG_HEAD .git/FETCH_HEAD .git/MERGE_HEAD .git/CHERRY_PICK_HEAD .git/REVERT_HEAD .git/AUTO_MERGE .git/BISECT_*
rm -rf .git/objects/info/commit-graph .git/objects/info/commit-graphs
find .git/objects/pack -name '*.keep' -delete 2>/dev/null
# -a -d without -l copies what an alternate lends and drops what nothing reaches.
g repack -a -d -q 2>/dev/null || answer failed "repack"
# The borrowed store itself would still answer. One inside this copy is removed; one elsewhere may be somebody's.
[ -f .git/objects/info/alternates ] && while IFS= read -r store; do
  store=$(cd .git/objects && cd -P "$store" 2>/dev/null && pwd -P) || continue
  case $store in
    "$(pwd -P)/.git/objects") ;;
    "$(pwd -P)/.git/"*) rm -rf -- "$store" ;;
    *) answer failed "objects are borrowed from $store" ;;
  esac
done < .git/objects/info/alternates
rm -f .git/objects/info/alternates .git/objects/info/http-alternates
g prune --expire=now 2>/dev/null || answer failed "prune"
after=$(stored)
[ "$after" = "$(kept)" ] || answer failed "objects remain that HEAD does not reach"
answer hidden $((before - $(printf '%s\n' "$after" | wc -l))) "$(g rev-parse HEAD)"
