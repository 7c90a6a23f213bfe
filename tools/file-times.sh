#!/usr/bin/env bash
# Sets the time of each file that git tracks, and of each directory, to that of the last commit which changed it. go test
# compares the times of files that a test opened, so that without this nothing cached is found in a new clone.
set -euo pipefail
cd "$(dirname "$0")/.."
changed=$(git diff --name-only HEAD)
git log --format='@%ct' --name-only --no-renames --diff-filter=AMT -m --first-parent |
  awk -v changed="$changed" '
    BEGIN { n = split(changed, names, "\n"); for (i = 1; i <= n; i++) seen[names[i]] = 1 }
    /^@[0-9]+$/ { time = $0; next }
    /./ && !($0 in seen) { seen[$0] = 1; print time "\t" $0 }' |
  while IFS=$'\t' read -r time file; do
    if [ -f "$file" ]; then printf '%s\t%s\n' "$time" "$file"; fi
  done |
  awk -F'\t' '
    { files[$1] = files[$1] " " $2
      for (dir = $2; dir != "."; ) {
        if (!sub("/[^/]*$", "", dir)) dir = "."
        if (!(dir in dirs) || substr($1, 2) + 0 > dirs[dir]) dirs[dir] = substr($1, 2) + 0
      } }
    END { for (t in files) print t files[t]; for (d in dirs) print "@" dirs[d] " " d }' |
  while read -r time names; do touch -d "$time" $names; done
