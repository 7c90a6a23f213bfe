#!/usr/bin/env bash
# in-memory.sh COMMAND…: runs the command with the work directories of the go command
# in memory, where there is a file system for that with room and leave to execute.
# One go vet makes and removes hundreds of directories, which on ext4 costs more than
# the vetting: inodes that were removed a moment ago are passed over one by one.
set -uo pipefail

dir=$(mktemp -d /dev/shm/quartet.XXXXXX 2>/dev/null) || exec "$@"
trap 'rm -rf "$dir"' EXIT
trap : INT TERM # the command ends by them, and then this does
printf '#!/bin/sh\n' >"$dir/probe" && chmod +x "$dir/probe"
if [ "$(df --output=avail -k "$dir" | tail -1)" -gt 3000000 ] && "$dir/probe" 2>/dev/null; then
  export GOTMPDIR=$dir
fi
"$@"
