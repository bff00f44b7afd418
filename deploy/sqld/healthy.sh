#!/usr/bin/env bash
# Exit with 0 if the server that start.sh runs answers. For the health check of its container.
set -eu
port=${SQLD_LISTEN:-127.0.0.1:8080}
exec 3<>"/dev/tcp/127.0.0.1/${port##*:}"
printf 'GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3
read -r -t 3 status <&3
[[ $status == *" 200 "* ]]
