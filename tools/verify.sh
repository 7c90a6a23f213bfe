#!/usr/bin/env bash
# verify.sh runs the stages of .ci/stages, each of which is a target of the Makefile.
#
#   tools/verify.sh             every stage that has not passed yet for exactly these sources
#   tools/verify.sh --due       the stages whose files changed since the commit in .ci/base, until BUDGET seconds (2700)
#                               would be exceeded; the rest is named as owed
#   tools/verify.sh --list      the stages, and which of them are due
#
# A stage that fails does not keep the others from running. The summary says what each took, and the exit status is 1
# if one failed. A stage that cannot do its work here, such as a scan without its database, writes the reason to the file
# NOT_DONE and fails: it is then owed.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:-all}
make=${MAKE:-make}
budget=${BUDGET:-2700}
base=$(cat .ci/base 2>/dev/null || true)
git merge-base --is-ancestor "${base:-none}" HEAD 2>/dev/null || base=

# sources prints a hash of all files of the work tree that git does not ignore.
sources() (
  GIT_INDEX_FILE=$(mktemp -u)
  export GIT_INDEX_FILE
  trap 'rm -f "$GIT_INDEX_FILE"' EXIT
  git add -A && git write-tree
)

# due reports whether a file of a stage, given as pathspecs, changed since the base, which may be unknown.
due() { [ -z "$base" ] || ! git diff --quiet "$base" -- "$@"; }

passed=bin/verified/$(sources)
mkdir -p "$passed"
export NOT_DONE=$PWD/$passed/.not-done
failed=() owed=() summary=() spent=0
while read -r name seconds files; do
  read -ra files <<<"$files"
  case $mode in
    --list)
      printf '%-16s %5s s  %s\n' "$name" "$seconds" "$(due "${files[@]}" && echo due || echo -)"
      continue
      ;;
    --due)
      due "${files[@]}" || continue
      if [ $((spent + seconds)) -gt "$budget" ]; then
        owed+=("$name")
        continue
      fi
      ;;
  esac
  if [ -e "$passed/$name" ]; then
    summary+=("$(printf '%-16s passed before' "$name")")
    continue
  fi
  printf '\n=== %s\n' "$name"
  rm -f "$NOT_DONE"
  began=$SECONDS result=failed
  if "$make" --no-print-directory "$name" </dev/null; then
    result=passed
    touch "$passed/$name"
  elif [ -s "$NOT_DONE" ]; then
    result="NOT DONE: $(cat "$NOT_DONE")"
    owed+=("$name")
  else
    failed+=("$name")
  fi
  took=$((SECONDS - began))
  spent=$((spent + took))
  summary+=("$(printf '%-16s %5s s  %s' "$name" "$took" "$result")")
done < <(grep -vE '^(#|$)' .ci/stages)
[ ${#summary[@]} -eq 0 ] || printf '\n=== stages\n' && printf '%s\n' "${summary[@]}"
if [ ${#owed[@]} -gt 0 ]; then
  echo "OWED, because it could not be done or $budget s would be exceeded: make ${owed[*]}"
fi
if [ ${#failed[@]} -gt 0 ]; then
  echo "FAILED: ${failed[*]}"
  exit 1
fi
