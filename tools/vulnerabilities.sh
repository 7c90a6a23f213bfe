#!/usr/bin/env bash
# Scans what the product compiles for known vulnerabilities with govulncheck, which reports only those
# whose code is reachable. Where its database cannot be reached nothing is known, and the script fails with NOT SCANNED;
# make verify then names the scan as owed, so that a network that is cut off does not stop every change.
#
# Usage: tools/vulnerabilities.sh [PACKAGES]    GOVULNDB=URL for another database
set -uo pipefail
cd "$(dirname "$0")/.."

# A module of its own, pinned here, so that neither go.mod has its dependencies.
govulncheck=golang.org/x/vuln/cmd/govulncheck@v1.9.0

# An answer of the database at all, before anything is compiled.
db=${GOVULNDB:-https://vuln.go.dev}
if [[ $db == http* ]] && ! curl --silent --fail --output /dev/null --max-time 20 "$db/index/db.json"; then
  reason="NOT SCANNED: the vulnerability database $db cannot be reached, so it is not known whether dependencies have vulnerabilities."
  echo "$reason"
  [ -z "${NOT_DONE:-}" ] || echo "$reason" >"$NOT_DONE"
  exit 1
fi

# Installed, not run by the go command, which would hide its exit status.
GOBIN=$PWD/bin/tools ${GO:-go} install "$govulncheck" || exit
bin/tools/govulncheck -db "$db" "${@:-./...}"
status=$?
case $status in
  0) echo "no known vulnerability is reachable" ;;
  3) echo "vulnerabilities were found; raise the dependency or the toolchain that the report names" ;;
  *) echo "the scan failed (status $status); it says nothing about vulnerabilities" ;;
esac
exit $status
