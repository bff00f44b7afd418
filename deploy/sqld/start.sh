#!/usr/bin/env bash
# Start a libSQL server with the options that a mesh needs. It needs bash and the server, nothing else. Settings come from the
# environment; sqld.env shows them all:
#
#   SQLD_BINARY        the server                     (default: sqld, from the PATH)
#   SQLD_DATA          folder for its data            (default: ./sqld-data)
#   SQLD_LISTEN        address and port               (default: 127.0.0.1:8080)
#   SQLD_KEY           file with the public keys of its tokens: Ed25519, PEM, one after another (required)
#   SQLD_ADMIN_PORT    port on loopback by which this script configures it (default: 8081)
#   SQLD_CONNECTIONS   how many streams may be open   (default: 256)
#   SQLD_TENANTS       folder with the public key NAME.pub.pem of each tenant: the server has the namespace NAME for
#                      each, which only tokens of that key open, and no other than these (default: one database)
#   SQLD_EXTENSIONS    folder that build_extension.sh has filled (default: extensions, next to this script)
set -eu

# The data is for this user alone, whatever the umask of the caller.
umask 077

binary=${SQLD_BINARY:-sqld}
data=${SQLD_DATA:-./sqld-data}
listen=${SQLD_LISTEN:-127.0.0.1:8080}
admin_port=${SQLD_ADMIN_PORT:-8081}
extensions=${SQLD_EXTENSIONS:-$(dirname "$0")/extensions}
tenants=${SQLD_TENANTS:-}
shopt -s nullglob

if [ -z "${SQLD_KEY:-}" ]; then
    echo "start.sh: SQLD_KEY must be set: without a key anyone may write; run \`vox-mesh token create\` and set SQLD_KEY=sqld.pub.pem" >&2
    exit 2
fi
if [ ! -r "$SQLD_KEY" ]; then
    echo "start.sh: SQLD_KEY must be a readable file, got $SQLD_KEY; name a file with an Ed25519 public key" >&2
    exit 2
fi
if ! command -v "$binary" >/dev/null 2>&1; then
    echo "start.sh: SQLD_BINARY must be a program, got $binary; install libsql-server or name its path" >&2
    exit 2
fi
if [ ! -r "$extensions/trusted.lst" ]; then
    echo "start.sh: SQLD_EXTENSIONS must be a folder with trusted.lst, got $extensions: without the extension any token can read and write the server's files; run build_extension.sh $extensions" >&2
    exit 2
fi

if [ -n "$tenants" ] && [ ! -d "$tenants" ]; then
    echo "start.sh: SQLD_TENANTS must be a folder, got $tenants; put the public key NAME.pub.pem of each tenant into it" >&2
    exit 2
fi
for key in ${tenants:+"$tenants"/*.pub.pem}; do
    name=${key##*/}
    if [[ ! ${name%.pub.pem} =~ ^[a-z0-9][a-z0-9-]*$ ]] || [[ ! $(<"$key") =~ ^-----BEGIN\ PUBLIC\ KEY-----[A-Za-z0-9+/=[:space:]]+-----END\ PUBLIC\ KEY-----$ ]]; then
        echo "start.sh: SQLD_TENANTS must hold one public key per file and names of letters, digits and hyphens, got $key; run \`vox-mesh token create\` with --key NAME.pem" >&2
        exit 2
    fi
done

# New with every start: no other process on this machine can use the admin port.
LIBSQL_ADMIN_AUTH_KEY=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
export LIBSQL_ADMIN_AUTH_KEY

# Whether the server itself listens at the admin port. Until it does, another user could, and would be sent the key.
# Where there is no /proc, lsof tells.
is_listening() {
    local local_address state owner wanted
    if [ ! -r /proc/self/net/tcp ]; then
        lsof -nP -a -p "$1" -iTCP:"$admin_port" -sTCP:LISTEN >/dev/null 2>&1
        return
    fi
    printf -v wanted '%04X' "$admin_port"
    while read -r _ local_address _ state _ _ _ owner _; do
        # Listening sockets (0A) come first. Reading the rest would take a minute if 10,000 connections are open.
        [[ $state == st || $state == 0A ]] || return 1
        # 127.0.0.1, in the order of either kind of processor.
        if [[ $local_address =~ ^(0100007F|7F000001):$wanted$ ]]; then
            [ "$owner" = "$EUID" ]
            return
        fi
    done </proc/self/net/tcp
    return 1
}

# Send a request about a namespace to the admin port: post NAMESPACE/ACTION BODY STATUS...
post() {
    local path=$1 body=$2 status
    shift 2
    exec 3<>"/dev/tcp/127.0.0.1/$admin_port" || return 1
    printf 'POST /v1/namespaces/%s HTTP/1.1\r\nHost: localhost\r\nAuthorization: basic %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s' \
        "$path" "$LIBSQL_ADMIN_AUTH_KEY" "${#body}" "$body" >&3
    read -r -t 5 _ status _ <&3
    exec 3>&-
    [[ " $* " == *" $status "* ]]
}

# By default a commit survives the death of the server, but not a loss of power. The server forgets this
# setting with every start, and has no flag for it. A configuration without the key would remove the key.
make_durable() {
    post "$1/config" "{\"block_reads\":false,\"block_writes\":false,\"txn_timeout_s\":5,\"durability_mode\":\"strong\",\"jwt_key\":$2}" 200
}

# Create the namespaces of the tenants (400: it exists) and configure all.
configure() {
    local key name pem
    make_durable default null || return 1
    for key in ${tenants:+"$tenants"/*.pub.pem}; do
        name=${key##*/} name=${name%.pub.pem}
        pem=$(<"$key") pem="\"${pem//$'\n'/\\n}\\n\""
        post "$name/create" "{\"jwt_key\":$pem}" 200 400 || return 1
        make_durable "$name" "$pem" || return 1
    done
}

# A server that can't be configured is stopped.
configure_or_end() {
    for _ in {1..1000}; do
        if is_listening "$1" && (configure) 2>/dev/null; then return; fi
        kill -0 "$1" 2>/dev/null || return 0
        sleep 0.02
    done
    echo "start.sh: durability not set at port $admin_port: no answer; choose another SQLD_ADMIN_PORT if it is in use" >&2
    kill "$1"
}

# Twice in the background: this process becomes the server, which would not reap a child. Descriptor 50 is the lock
# that `vox-mesh server start` holds on the data; it ends with the server.
(configure_or_end $$ 50>&- &)

# --checkpoint-interval-s: by default the server checkpoints on commit, and many short-lived writing
#   streams can wedge it for good.
# --max-concurrent-connections: counts open streams, of which a node has up to two. One too many is closed
#   without an error, so this is well above twice the number of nodes.
exec "$binary" \
    --db-path "$data" \
    --http-listen-addr "$listen" \
    --admin-listen-addr "127.0.0.1:$admin_port" \
    --auth-jwt-key-file "$SQLD_KEY" \
    --extensions-path "$extensions" \
    --checkpoint-interval-s 60 \
    --max-concurrent-connections "${SQLD_CONNECTIONS:-256}" \
    ${tenants:+--enable-namespaces} \
    --no-welcome
