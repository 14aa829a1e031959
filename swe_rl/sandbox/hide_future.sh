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

# Submodules keep their objects in stores of their own: what their HEAD and index do not reach goes in the same way.
hide_stores() { # adds to $gone what it removed
  local store all head remote
  while IFS= read -r store; do
    store=${store%/objects}
    [ -f "$store/HEAD" ] || continue
    export GIT_DIR=$store
    all=$(stored | wc -l)
    if [ "$(g for-each-ref | wc -l)" -gt 0 ] || [ -n "$(g remote)" ] || [ -d "$store/logs" ] || [ -e "$store/objects/info/alternates" ] ||
      [ "$all" -ne "$(kept | wc -l)" ]; then
      [ ! -e "$store/objects/info/alternates" ] || answer failed "a submodule's objects are borrowed: $store"
      head=$(g rev-parse -q --verify 'HEAD^{commit}') && g update-ref --no-deref HEAD "$head" || answer failed "a submodule has no HEAD: $store"
      g for-each-ref --format='delete %(refname)' | g update-ref --no-deref --stdin || answer failed "refs of a submodule: $store"
      for remote in $(g remote); do g config --remove-section "remote.$remote" 2>/dev/null; done
      rm -rf -- "$store"/{logs,worktrees,rr-cache,refs/original,info/grafts,ORIG_HEAD,FETCH_HEAD,packed-refs,objects/info/commit-graph,objects/info/commit-graphs}
      find "$store/objects/pack" -name '*.keep' -delete 2>/dev/null
      g repack -a -d -q 2>/dev/null && g prune --expire=now 2>/dev/null || answer failed "repack of a submodule: $store"
      [ "$(stored)" = "$(kept)" ] || answer failed "objects remain that a submodule's HEAD does not reach: $store"
      gone=$((gone + all - $(stored | wc -l) + 1))
    fi
    unset GIT_DIR
  done < <(find "$PWD/.git/modules" -type d -name objects -prune 2>/dev/null)
}

stored() { g cat-file --batch-all-objects --unordered --batch-check='%(objectname)' | sort -u; }
# What stays: HEAD's history and what the index holds. Everything else in the store would be somebody's future.
kept() { g rev-list --objects --indexed-objects --no-object-names HEAD | sort -u; }
gone=0
[ ! -d .git/modules ] || hide_stores
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
  [ "$gone" -eq 0 ] || answer hidden "$gone" "$head"
  answer clean 0 "$head"
fi

# A state beyond the base keeps its files (they are checked out anyway), not the commits that led to it.
if [ "$head" != "$base" ] || [ -z "$same" ]; then
  new=$(g commit-tree "$tree" -p "$base" -m 'state of the image') && g update-ref HEAD "$new" || answer failed "squash"
fi
g for-each-ref --format='%(refname)' | grep -vxF "${branch:-none}" | sed 's/^/delete /' | g update-ref --no-deref --stdin || answer failed "refs"
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
answer hidden $((gone + before - $(printf '%s\n' "$after" | wc -l))) "$(g rev-parse HEAD)"
