#!/bin/sh
set -e
# dpkg says remove, rpm 0; an upgrade leaves the services to the new version.
case "${1:-}" in
  remove | 0)
    if [ -d /run/systemd/system ]; then
      systemctl disable --now quartet.service quartet-worker.service
    fi
    ;;
esac
