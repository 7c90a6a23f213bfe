#!/usr/bin/env bash
# `make up`: docker-compose.yml from images built here, running, ready, with the first admin's key. Again: brings up what
# is new and leaves the rest.
#
#   IMAGES=build    with docker compose build, out of Dockerfile (the default)
#   IMAGES=static   with deploy/images.sh, without a base image or a registry
#   IMAGES=none     the images are there
#
# What a person needs afterwards is in installation/: ca.pem, admin.key, env to be sourced, and a copy of the
# installation's key to be kept elsewhere.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 077
to=installation

compose() {
  if docker compose version >/dev/null 2>&1; then docker compose "$@"; else docker-compose "$@"; fi
}

case ${IMAGES:-build} in
  build)
    compose --profile workers build || {
      echo "the images could not be built. Where no registry of base images can be reached, build without them: make up IMAGES=static" >&2
      exit 1
    } ;;
  static) deploy/images.sh "${QUARTET_TAG:-dev}" ;;
  none) ;;
  *) echo "IMAGES=$IMAGES: it must be build, static or none" >&2; exit 2 ;;
esac
[ -x bin/quartet ] || make build
compose up -d --no-build

echo "waiting until every service is ready"
services=$(compose ps -q | xargs docker inspect --format '{{if .State.Health}}{{.Id}}{{end}}')
[ -n "$services" ] || { echo "no service runs: docker compose ps, docker compose logs" >&2; exit 1; }
SECONDS=0
for id in $services; do # as the health check, and sooner
  until docker exec "$id" /quartet ready >/dev/null 2>&1; do
    [ "$SECONDS" -lt 180 ] || { docker exec "$id" /quartet ready >&2 || true; echo "not every service became ready: docker compose ps, docker compose logs" >&2; exit 1; }
    sleep 0.5
  done
done

# Files of containers come out as this user's.
mkdir -p "$to"
gateway=$(compose ps -q gateway | head -1)
docker cp -q "$gateway":/tls/ca.pem "$to/ca.pem" 2>/dev/null || docker cp "$gateway":/tls/ca.pem "$to/ca.pem"
docker cp "$gateway":/keys/key "$to/key" >/dev/null
chmod 644 "$to/ca.pem"
port() { compose port gateway "$1" | sed 's/^0\.0\.0\.0:/127.0.0.1:/'; }
cat >"$to/env" <<EOF_ENV
export QUARTET_ADDRESS=$(port 7481)
export QUARTET_TLS_CA_FILE=$PWD/$to/ca.pem
export QUARTET_TOKEN_FILE=$PWD/$to/admin.key
EOF_ENV

if ! (unset QUARTET_TOKEN; . "$to/env" && [ -s "$to/admin.key" ] && bin/quartet whoami >/dev/null 2>&1); then
  compose exec -T gateway /quartet key create root --role installation_admin --bootstrap </dev/null >"$to/admin.key.new" 2>/dev/null
  mv "$to/admin.key.new" "$to/admin.key"
fi
cat <<EOF_SAID

Quartet is up: REST https://$(port 7480), gRPC $(port 7481).
  . $to/env                  the address, the authority and the first admin's key, for bin/quartet
  $to/admin.key              that key; make others with it: bin/quartet key create NAME --role ROLE
  $to/ca.pem                 who signs: curl --cacert, --tls-ca-file
  $to/key                    the installation's key: keep a copy elsewhere, a backup does not contain it
EOF_SAID
