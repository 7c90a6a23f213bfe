# The images of docker-compose.yml. `docker compose build` makes them; deploy/images.sh makes the same
# ones without any base image, from what `make build` wrote.
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG REVISION=
ARG DATE=
RUN make build REVISION=$REVISION DATE=$DATE && mkdir -m 700 /empty
# What setup fills: a volume begins as the directory of the image at its place, with its owner.
RUN cd "$(mktemp -d)" && mkdir -m 700 authority keys agent work task waiting board identity scheduler gateway nats-1 nats-2 nats-3 && mv "$PWD" /installation

# The services: one static binary and nothing else, nobody's user, and a root that can be read-only.
FROM scratch AS server
COPY --from=build /src/bin/quartet /quartet
COPY --from=build --chown=65532:65532 /empty /data
COPY --from=build --chown=65532:65532 /empty /tmp
COPY --from=build --chown=65532:65532 /empty /archive
COPY --from=build --chown=65532:65532 /installation /installation
ENV QUARTET_DATA_DIR=/data
USER 65532:65532
ENTRYPOINT ["/quartet"]

# NATS as it is published, as nobody's user.
FROM nats:2.12 AS published
FROM scratch AS nats
COPY --from=published /nats-server /nats-server
COPY --from=build --chown=65532:65532 /empty /data
USER 65532:65532
ENTRYPOINT ["/nats-server"]

# A worker runs commands, so it has a shell and git. Whatever else they need is yours to add:
# FROM quartet-worker, then your tools.
FROM debian:bookworm-slim AS worker
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates git && rm -rf /var/lib/apt/lists/*
COPY --from=build /src/bin/quartet /usr/local/bin/quartet
COPY --from=build --chown=65532:65532 /empty /workspace
COPY --from=build --chown=65532:65532 /empty /data
# Its home is outside of the workspace: files with credentials in a home do not exist for commands.
ENV QUARTET_DATA_DIR=/data HOME=/tmp
USER 65532:65532
WORKDIR /workspace
ENTRYPOINT ["/usr/local/bin/quartet"]
