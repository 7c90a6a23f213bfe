#!/usr/bin/env bash
# Builds the images of docker-compose.yml out of static binaries alone, without a base image or a registry: for
# machines that reach neither, and for the tests. Needs Go, Docker and, for the worker's shell, busybox-static.
#
#   deploy/images.sh [TAG]
set -euo pipefail
cd "$(dirname "$0")/.."
tag=${1:-dev}
shell=$(command -v busybox) || { echo "busybox is missing: apt install busybox-static" >&2; exit 1; }

make build
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{server,worker/bin,nats}
mkdir -p "$root"/server/{data,tmp,archive} "$root"/worker/{data,workspace,tmp} "$root"/nats/data
# What the volumes and file systems there begin with; those under installation are for setup.
mkdir -p "$root"/server/installation/{authority,keys,agent,work,task,waiting,board,identity,scheduler,gateway,nats-1,nats-2,nats-3}
chmod 700 "$root"/*/data "$root"/server/archive "$root"/server/installation{,/*}
cp bin/quartet "$root/server/quartet"
cp bin/quartet "$root/worker/bin/quartet"
cp "$shell" "$root/worker/bin/busybox"
for name in $("$shell" --list); do
  [ -e "$root/worker/bin/$name" ] || ln -s busybox "$root/worker/bin/$name"
done
CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$root/nats/nats-server" github.com/nats-io/nats-server/v2

# image NAME DIRECTORY ENTRYPOINT WORKDIR HOME
image() {
  DOCKER_BUILDKIT=0 docker build -q -t "$1:$tag" -f - "$root/$2" 2>/dev/null <<EOF
FROM scratch
COPY --chown=65532:65532 . /
ENV PATH=/bin QUARTET_DATA_DIR=/data HOME=$5
USER 65532:65532
WORKDIR $4
ENTRYPOINT ["$3"]
EOF
}
image quartet-server server /quartet /data /data
image quartet-worker worker /bin/quartet /workspace /tmp
image quartet-nats nats /nats-server /data /data
