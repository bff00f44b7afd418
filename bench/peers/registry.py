"""The peers by their names."""

from __future__ import annotations

from typing import Final

from bench.peers.dbos_sqlite import DBOS
from bench.peers.huey_sqlite import HUEY
from bench.peers.litequeue_sqlite import LITEQUEUE
from bench.peers.nats_jetstream import NATS
from bench.peers.ours import OURS_IN_FILE, OURS_ON_SERVER
from bench.peers.persist_queue import PERSIST_QUEUE
from bench.peers.procrastinate_postgres import PROCRASTINATE
from bench.peers.rq_redis import RQ

PEERS: Final = (HUEY, DBOS, PERSIST_QUEUE, LITEQUEUE, RQ, PROCRASTINATE, NATS)
BY_NAME: Final = {peer.name: peer for peer in (*PEERS, OURS_IN_FILE, OURS_ON_SERVER)}
