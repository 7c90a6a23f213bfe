#!/bin/sh
set -e
if command -v systemd-sysusers >/dev/null 2>&1; then
  systemd-sysusers quartet.conf
else
  for user in quartet quartet-worker; do
    getent passwd "$user" >/dev/null || useradd --system --user-group --home-dir "/var/lib/$user" --no-create-home --shell /usr/sbin/nologin "$user"
  done
fi
# An administrator may have removed the file, which a package manager respects.
if [ -e /etc/quartet/quartet.yaml ]; then
  chgrp quartet /etc/quartet/quartet.yaml
fi
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  # After an upgrade what runs goes on with the new version; nothing is started that was not.
  systemctl try-restart quartet.service quartet-worker.service
fi
