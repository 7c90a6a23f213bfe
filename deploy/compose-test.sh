#!/usr/bin/env bash
# Brings docker-compose.yml up on this machine as README.md says it, with images of static binaries, and tests it from
# outside: the commands of README.md, the app tests, and work that goes on while everything there is killed or restarted,
# a piece at a time. Ends with everything removed.
# Takes Docker and compose where they are, and Debian's packages with a daemon of its own where they are not. Only what
# this script started is stopped.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
daemon=
export CGO_ENABLED=0 GOFLAGS="-trimpath -tags=grpcnotrace" # as make build has it: what the tests build was compiled by then

say() { printf '\n--- %s (%ss)\n' "$1" "$SECONDS"; }

need() {
  command -v "$1" >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$2" >/dev/null; }
}
need dockerd docker.io
need busybox busybox-static
export DOCKER_CONFIG=$work/docker-config
if ! docker compose version >/dev/null 2>&1; then
  # The older compose as `docker compose`, which is what people have and documents say.
  need docker-compose docker-compose
  mkdir -p "$DOCKER_CONFIG/cli-plugins"
  cat >"$DOCKER_CONFIG/cli-plugins/docker-compose" <<'PLUGIN'
#!/bin/sh
if [ "$1" = docker-cli-plugin-metadata ]; then
  echo '{"SchemaVersion":"0.1.0","Vendor":"docker-compose","Version":"1"}'
  exit 0
fi
shift
exec docker-compose "$@"
PLUGIN
  chmod +x "$DOCKER_CONFIG/cli-plugins/docker-compose"
fi

# A copy, so that .env and installation/ of this directory stay as they are.
tree=$work/quartet
export COMPOSE_PROJECT_NAME=quartet-test-$$ QUARTET_TAG=test-$$ IMAGES=none
finish() {
  status=$?
  if [ "$status" -ne 0 ]; then (cd "$tree" && docker compose --profile workers logs --tail 20 2>&1 | cut -c1-300) || true; fi
  (cd "$tree" && docker compose --profile workers down -v --remove-orphans -t 1 >/dev/null 2>&1) || true
  docker rmi -f "quartet-server:$QUARTET_TAG" "quartet-worker:$QUARTET_TAG" "quartet-nats:$QUARTET_TAG" >/dev/null 2>&1 || true
  if [ -n "$daemon" ]; then kill "$daemon" && wait "$daemon" || true; fi
  rm -rf "$work"
  exit "$status"
}
trap finish EXIT

if ! docker info >/dev/null 2>&1; then
  say "dockerd"
  dockerd --data-root "$work/docker" >"$work/dockerd.log" 2>&1 &
  daemon=$!
  for _ in $(seq 120); do docker info >/dev/null 2>&1 && break; sleep 0.5; done
  docker info >/dev/null || { tail "$work/dockerd.log" >&2; exit 1; }
fi

say "images"
deploy/images.sh "$QUARTET_TAG"
mkdir -p "$tree/bin"
git ls-files -z --cached --others --exclude-standard docker-compose.yml Makefile deploy .env.example | tar --null -cf - -T - | tar -xf - -C "$tree"
cp bin/quartet "$tree/bin/"

# Ports of its own: whoever works here may have a server on the usual ones.
free() {
  local port
  while port=$((20000 + RANDOM % 10000)); (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
  echo "$port"
}
grpc=127.0.0.1:$(free) http=127.0.0.1:$(free)
cat >"$tree/.env" <<EOF_ENV
QUARTET_GRPC_PORT=$grpc
QUARTET_HTTP_PORT=$http
QUARTET_PUBLIC_URL=https://$http
NATS_MAX_STORE=2GB
EOF_ENV

go test -c -tags grpcnotrace,deployed -o "$work/tests" ./tests
deployed() { (cd tests && "$work/tests" -test.count=1 -test.timeout 25m -deployed "$grpc" -deployed-http "https://$http" -deployed-dir "$tree" "$@"); }

say "the commands of README.md"
deployed -test.run '^TestTheReadmeIsRun$'
export QUARTET_TOKEN SSL_CERT_FILE=$tree/installation/ca.pem
QUARTET_TOKEN=$(cat "$tree/installation/admin.key")

say "app tests"
deployed -test.run 'TestOneLoop|TestX15_ContainersReach|TestX15_ACertificate|TestX15_VerifyReads|TestX4_ARuns|TestX5_Bad|TestW7_Every|TestW6_|TestP2_'

say "work while everything is killed or restarted, a piece at a time"
deployed -test.v -test.run '^TestX1_NothingIsLostInTheDeployment$' -deployed-works 3
say "done"
