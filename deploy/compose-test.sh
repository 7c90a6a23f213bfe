#!/usr/bin/env bash
# Brings docker-compose.yml up on this machine, with images of static binaries, and runs the app tests against it: once as it is,
# once more with a NATS server gone, and once after every service was killed. Ends with everything removed.
# Takes Docker and compose where they are, and Debian's packages with a daemon of its own where they are not.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
export COMPOSE_PROJECT_NAME=quartet-test COMPOSE_FILE=$PWD/docker-compose.yml
daemon=

say() { printf '\n--- %s (%ss)\n' "$1" "$SECONDS"; }

need() {
  command -v "$1" >/dev/null || { apt-get update -qq && apt-get install -y -qq "$2" >/dev/null; }
}
need dockerd docker.io
need busybox busybox-static
if ! docker compose version >/dev/null 2>&1; then need docker-compose docker-compose; fi
compose() {
  if docker compose version >/dev/null 2>&1; then
    docker compose --env-file "$work/env" "$@"
  else
    docker-compose --env-file "$work/env" "$@"
  fi
}

finish() {
  status=$?
  if [ "$status" -ne 0 ]; then compose logs --tail 20 || true; fi
  compose down -v --remove-orphans >/dev/null 2>&1 || true
  if [ -n "$daemon" ]; then kill "$daemon" && wait "$daemon" || true; fi
  rm -rf "$work"
  exit "$status"
}
trap finish EXIT

if ! docker info >/dev/null 2>&1; then
  say "dockerd"
  dockerd --data-root "$work/docker" >"$work/dockerd.log" 2>&1 &
  daemon=$!
  for _ in $(seq 60); do docker info >/dev/null 2>&1 && break; sleep 1; done
fi

secret() { head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n'; }
secret >"$work/key"
chown 65532 "$work/key" && chmod 400 "$work/key"
export QUARTET_TOKEN=$(secret)
cat >"$work/env" <<EOF
QUARTET_KEY_PATH=$work/key
QUARTET_BOOTSTRAP_TOKEN=$QUARTET_TOKEN
NATS_PASSWORD=$(secret)
NATS_IMAGE=quartet-nats:dev
NATS_MAX_STORE=2GB
QUARTET_GRPC_PORT=127.0.0.1:17491
QUARTET_HTTP_PORT=127.0.0.1:17490
QUARTET_PUBLIC_URL=http://127.0.0.1:17490
EOF

say "images"
deploy/images.sh dev

# ready waits until every service says that it is.
ready() {
  for _ in $(seq 120); do
    compose ps -q | xargs docker inspect --format '{{if .State.Health}}{{.State.Health.Status}}{{else}}healthy{{end}}' | grep -qv '^healthy$' || return 0
    sleep 1
  done
  echo "not every service became ready" >&2
  return 1
}
bodies() {
  go test -count=1 -timeout 10m ./tests -run 'TestOneLoop|TestX4_ARuns|TestX5_Bad|TestW7_Every|TestW6_|TestP2_' \
    -deployed 127.0.0.1:17491 -deployed-http http://127.0.0.1:17490
}

say "up"
compose up -d --no-build
ready
say "app tests"
bodies

say "app tests without nats-2"
compose stop nats-2
sleep 10 # the others choose leaders; meanwhile callers are asked to come again
ready
bodies
compose start nats-2

say "app tests after every service was killed"
for s in agent work task waiting board identity scheduler gateway; do
  kill -9 "$(docker inspect "$(compose ps -q "$s")" --format '{{.State.Pid}}')"
done
sleep 2
ready
bodies
say "done"
