#!/bin/sh
# Start a libSQL server with the flags that a mesh needs. Settings come from the environment:
#
#   SQLD_BINARY   the server                     (default: sqld, from the PATH)
#   SQLD_DATA     folder for its data            (default: ./sqld-data)
#   SQLD_LISTEN   address and port               (default: 127.0.0.1:8080)
#   SQLD_KEY      file with the public key of its tokens: Ed25519, PEM (required)
set -eu

binary=${SQLD_BINARY:-sqld}
data=${SQLD_DATA:-./sqld-data}
listen=${SQLD_LISTEN:-127.0.0.1:8080}

if [ -z "${SQLD_KEY:-}" ]; then
    echo "start.sh: SQLD_KEY is not set, and without a key anyone may write; for example SQLD_KEY=sqld.pub.pem" >&2
    exit 2
fi
if [ ! -r "$SQLD_KEY" ]; then
    echo "start.sh: SQLD_KEY: $SQLD_KEY can't be read; name a file with an Ed25519 public key" >&2
    exit 2
fi
if ! command -v "$binary" >/dev/null 2>&1; then
    echo "start.sh: SQLD_BINARY: $binary is not there; install libsql-server or name its path" >&2
    exit 2
fi

# --checkpoint-interval-s: by default the server checkpoints on commit, and many short-lived writing
#   streams can wedge it for good.
# --max-concurrent-connections: counts open streams, of which a node has up to two. One too many is closed
#   without a word, so this is well above twice the number of nodes.
exec "$binary" \
    --db-path "$data" \
    --http-listen-addr "$listen" \
    --auth-jwt-key-file "$SQLD_KEY" \
    --checkpoint-interval-s 60 \
    --max-concurrent-connections 256 \
    --no-welcome
