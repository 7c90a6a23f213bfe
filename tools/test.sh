#!/usr/bin/env bash
# test.sh NAME PACKAGE… -- FLAGS…: go test, by gotestsum. A failing test is run again alone, so that a flaky one is
# told from a broken one. Either fails the run, with the output of both attempts. COUNT=1 repeats no cached result.
# bin/tests/NAME.json has what each test took.
set -euo pipefail
cd "$(dirname "$0")/.."
name=$1 packages=() && shift
while [ $# -gt 0 ] && [ "$1" != -- ]; do packages+=("$1") && shift; done
[ $# -gt 0 ] && shift

# What tests start as processes is built beforehand, as they build it. The cached result of a test that starts one
# depends on this digest (tests/proc).
digests() {
  local flags='-trimpath -tags=grpcnotrace,nomodels' program
  for program in ./cmd/quartet ./examples/release-keeper github.com/nats-io/nats-server/v2; do
    CGO_ENABLED=0 GOFLAGS=$flags "${GO:-go}" run -ldflags=-w -exec sha256sum "$program"
  done
  CGO_ENABLED=0 GOFLAGS=$flags "${GO:-go}" run -C tests/s3server -ldflags=-w -exec sha256sum .
}
QUARTET_BINARIES=$(digests | cut -d' ' -f1 | sha256sum | cut -c1-16)
export QUARTET_BINARIES

mkdir -p bin/tests
flaky=bin/tests/$name.flaky
rm -f "$flaky"
"$TOOLS/gotestsum" --format pkgname --format-hide-empty-pkg --format-icons text --hide-summary skipped \
  --jsonfile "bin/tests/$name.json" --packages "${packages[*]}" \
  --rerun-fails=1 --rerun-fails-max-failures=5 --rerun-fails-run-root-test --rerun-fails-report "$flaky" \
  -- -vet=off -timeout 60m -parallel 6 ${COUNT:+-count="$COUNT"} "$@"
if [ -s "$flaky" ]; then
  printf 'FLAKY: failed, and passed when run again alone. The run fails.\n%s\n' "$(cat "$flaky")"
  exit 1
fi
