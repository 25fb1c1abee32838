"""Every Prometheus metric of the product, and no metric anywhere else.

Labels are closed sets. Ids, users, texts and models named by clients are never labels.
"""

import functools
from typing import Final, Literal, get_args

import prometheus_client
from prometheus_client import Counter, Gauge, Histogram

# Where the time of a request goes, in the order of its way.
Stage = Literal[
    "ingress",  # gateway: request read -> appended to the log
    "queue",  # worker: request read from the log -> the engine has a slot for it
    "tokenise",  # worker: prompt -> token ids
    "prefill",  # worker: handed to the engine -> first token
    "decode",  # worker: first step of a frame -> frame handed to the writer (the linger)
    "append",  # worker: frame handed to the writer -> acknowledged by the log
    "push",  # gateway, push: token records read from the log -> their events in the outboxes
    "egress",  # gateway, push: event taken from its outbox -> written to the connection
]

# fmt: off
_FAST: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5,
    0.75, 1, 2.5, 5, 10, 30, 60,
)
# fmt: on
# fmt: off
_SHORT: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5, 5, 10,
)
# fmt: on

# requests, connections
REQUESTS: Final = Counter(
    "tailrace_requests", "Requests to generate, by their outcome at the gateway", ["outcome"]
)
ERRORS: Final = Counter("tailrace_errors", "Errors told to clients", ["code", "status"])
CREDENTIAL_REFUSALS: Final = Counter(
    "tailrace_credential_refusals", "Credentials and tickets refused", ["reason"]
)
CONNECTIONS_REFUSED: Final = Counter(
    "tailrace_connections_refused",
    "Connections ended before their client was known, by what was too much or too late",
    ["reason"],
)
CLIENTS_SLOWED: Final = Counter(
    "tailrace_clients_slowed",
    "Pauses in reading a WebSocket, because its address or its principal sent too much",
    ["reason"],
)
OPEN_SOCKETS: Final = Gauge("tailrace_open_sockets", "WebSockets open now", ["kind"])
OPEN_STREAMS: Final = Gauge("tailrace_open_streams", "SSE streams open now")
FEEDS: Final = Gauge("tailrace_feeds", "Feeds open now, over SSE and sockets")
SOCKET_CLOSES: Final = Counter(
    "tailrace_socket_closes", "WebSockets closed, by close code or `client`", ["code"]
)
OUTBOX_CLOSES: Final = Counter(
    "tailrace_outbox_closes", "Connections closed because their outbox overflowed", ["verdict"]
)
POOL_BREAKER: Final = Gauge(
    "tailrace_pool_breaker", "Breaker of a pool: 0 closed, 1 half open, 2 open", ["pool"]
)
REVISION_SHARE: Final = Gauge(
    "tailrace_revision_share",
    "Part of a pool's new requests that its newest model revision gets, where `canary` is set",
    ["pool"],
)
REVISIONS_RETURNED: Final = Counter(
    "tailrace_revisions_returned",
    "Model revisions that get no new requests any more: errors, first_token",
    ["pool", "reason"],
)
POOL_FAILURES: Final = Counter(
    "tailrace_pool_failures",
    "What a pool's breaker was told of: failed, late, stalled",
    ["pool", "reason"],
)
HEDGES_OFFERED: Final = Counter(
    "tailrace_hedges_offered",
    "Responses without a first token that a second worker may start on",
    ["pool"],
)
FALLBACKS: Final = Counter(
    "tailrace_fallbacks",
    "Requests that another pool got than their own, or their last",
    ["pool", "to"],
)
ANSWERS_SHORTENED: Final = Counter(
    "tailrace_answers_shortened",
    "Requests that got a shorter answer than they asked for, because their pool was busy",
    ["pool"],
)
RUNNING_RESPONSES: Final = Gauge(
    "tailrace_running_responses", "In-flight responses of this process"
)

# latency: what a user feels, and where it went
FIRST_TOKEN_SECONDS: Final = Histogram(
    "tailrace_first_token_seconds",
    "Time to first token (TTFT): request read to first token ready for delivery",
    ["pool"],
    buckets=_FAST,
)
INTER_TOKEN_SECONDS: Final = Histogram(
    "tailrace_inter_token_seconds",
    "Inter-token latency (ITL): time between two token events of one response, at delivery",
    ["pool"],
    buckets=_SHORT,
)
STAGE_SECONDS: Final = Histogram(
    "tailrace_stage_seconds",
    "Time in one stage: " + ", ".join(get_args(Stage)),
    ["stage"],
    buckets=_FAST,
)
SUBMIT_SECONDS: Final = Histogram(
    "tailrace_submit_seconds", "Request read to request acknowledged by the log", buckets=_FAST
)
REPLAY_SECONDS: Final = Histogram(
    "tailrace_replay_seconds", "Reading one response's history out of the log", buckets=_FAST
)
REPLAYED_RECORDS: Final = Counter("tailrace_replayed_records", "Records read for replays")

# the log
FRAMES: Final = Counter("tailrace_frames_appended", "Token frames appended and acknowledged")
TOKENS: Final = Counter(
    "tailrace_tokens",
    "Tokens: prompt, cached (part of prompt), output; given (former answers)",
    ["kind"],
)
FLUSHES: Final = Counter(
    "tailrace_flushes",
    "Batches of token frames appended: a round trip to the broker each",
)
FRAME_TOKENS: Final = Histogram(
    "tailrace_frame_tokens", "Tokens in one frame", buckets=(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
)
IGNORED_RECORDS: Final = Counter(
    "tailrace_ignored_records",
    "Records of the token log that had no effect under the reader rule",
    ["reason"],
)
FORGED_RECORDS: Final = Counter(
    "tailrace_forged_records",
    "Records without a good authentication tag, which no reader sees",
    ["reason"],
)
CLAIMS: Final = Counter(
    "tailrace_claims",
    "Claims written by this worker: first, stolen, hedged, takeover, self, closing",
    ["kind"],
)
TAKEOVERS: Final = Counter(
    "tailrace_takeovers",
    "Responses taken over, by whether tokens were already accepted",
    ["tokens"],
)
STOLEN: Final = Counter(
    "tailrace_stolen_requests",
    "Requests taken from another worker's partition: claimed, lost_race (another worker's claim "
    "came first), left (begun, ended, or no slot was free)",
    ["outcome"],
)
HEDGED: Final = Counter(
    "tailrace_hedged_requests",
    "Late responses that this worker raced for: won (its claim took effect), lost (the owner's "
    "token or another claim came first), left (no slot, or the engine did not answer)",
    ["outcome"],
)
PAUSED: Final = Counter(
    "tailrace_paused_responses",
    "Times that a response made way for a better class or for a principal with less than its share",
)
CACHED_ANSWERS: Final = Counter(
    "tailrace_cached_answers",
    "Former answers, where a pool gives them again: hit, miss (requests that may get one), kept",
    ["outcome"],
)
ORPHANED: Final = Gauge(
    "tailrace_orphaned_responses",
    "Running responses of another model revision, which this worker offers to those that have it",
)
OFFERED: Final = Gauge(
    "tailrace_offered_requests", "Waiting requests that this worker offers to idle workers"
)
RESPONSES_ENDED: Final = Counter(
    "tailrace_responses_ended", "Terminals written by this worker", ["status"]
)
DEAD_LETTERS: Final = Counter(
    "tailrace_dead_letters", "Requests that became dead letters", ["reason"]
)
PRODUCERS_REPLACED: Final = Counter(
    "tailrace_producers_replaced", "Kafka producers replaced after an error", ["reason"]
)
READERS_BLIND: Final = Gauge(
    "tailrace_readers_blind",
    "1 while a reader of Kafka hears nothing although the broker answers others",
    ["client"],
)
READERS_REPLACED: Final = Counter(
    "tailrace_readers_replaced",
    "Consumers replaced because another one was answered where they were not",
    ["client"],
)
TASKS: Final = Gauge("tailrace_tasks", "Tasks of the event loop")
CONSUMER_LAG: Final = Gauge(
    "tailrace_consumer_lag",
    "Consumer lag: records between this process's position and the end, at its last fetch",
    ["topic", "partition"],
)
KAFKA_AWAY: Final = Gauge("tailrace_kafka_away", "1 while the broker does not answer")
REDIS_FAILURES: Final = Counter(
    "tailrace_redis_failures", "Redis calls without an answer in time, or with an error"
)

# the archive
ARCHIVED: Final = Counter(
    "tailrace_archived",
    "What became of records of the archive's topics: row, erased, garbage, set_aside",
    ["outcome"],
)
ARCHIVE_SET_ASIDE: Final = Gauge(
    "tailrace_archive_set_aside", "Records that the archive could not fold and has set aside"
)
PASSAGES_REFUSED: Final = Counter(
    "tailrace_passages_refused", "Passages of files that the vector database does not take"
)
LOG_ROLLED_BACK: Final = Counter(
    "tailrace_log_rolled_back",
    "Partitions whose stored position did not belong to the log any more, and which are read again",
    ["topic"],
)
ARCHIVE_FOLD_SECONDS: Final = Histogram(
    "tailrace_archive_fold_seconds", "One batch of records into the database", buckets=_FAST
)

# engine and placement
ENGINE_RUNNING: Final = Gauge(
    "tailrace_engine_running", "Responses the engine is generating", ["pool"]
)
ENGINE_WAITING: Final = Gauge(
    "tailrace_engine_waiting", "Responses accepted by this worker that the engine has not started"
)
REQUESTS_SET_ASIDE: Final = Gauge(
    "tailrace_requests_set_aside",
    "Requests read and not kept, because their principal has enough waiting in this worker",
)
ENGINE_CAPACITY: Final = Gauge(
    "tailrace_engine_capacity", "Responses the engine generates in parallel at most"
)
ENGINE_TOKENS_PER_SECOND: Final = Gauge(
    "tailrace_engine_tokens_per_second", "Output tokens per second over the last seconds"
)
BACKLOG_TOKENS: Final = Gauge(
    "tailrace_backlog_tokens",
    "Output tokens that this worker's requests will take: running, and waiting by class",
    ["pool", "kind"],
)
DRAIN_RATE: Final = Gauge(
    "tailrace_drain_tokens_per_second",
    "Output tokens per second while requests wait; 0 before any waited",
    ["pool"],
)
ENGINE_READY: Final = Gauge("tailrace_engine_ready", "1 when the engine takes requests")
ENGINE_FIELD_NOT_OFFERED: Final = Gauge(
    "tailrace_engine_field_not_offered",
    "1 for each field or format of the API that this worker's engine refused, or that ended it "
    "(reason: refused, fatal)",
    ["field", "reason"],
)
COLD_START_SECONDS: Final = Gauge(
    "tailrace_cold_start_seconds", "From this worker's start until it took requests; 0 before"
)
COST: Final = Counter(
    "tailrace_cost",
    "Price of the responses that ended here (member `price` of the pool): input, output",
    ["kind"],
)
POOLS_READ: Final = Counter(
    "tailrace_pools_read", "Changed files of pools: taken, refused", ["outcome"]
)
POOLS_STALE: Final = Gauge(
    "tailrace_pools_stale", "1 while the file of pools cannot be used and former pools are in force"
)
PREFIX_LOOKUPS: Final = Counter(
    "tailrace_prefix_lookups",
    "Placement by prompt prefix: hit, miss, overridden by load",
    ["outcome"],
)
EXPECTED_CACHED: Final = Counter(
    "tailrace_expected_cached_tokens",
    "Prompt tokens that the worker of a new response was said to hold (tailrace_tokens of the kind "
    "cached: what its engine found)",
)
HELD_PREFIXES: Final = Gauge(
    "tailrace_held_prefixes", "Beginnings of conversations that gateways are told to be held here"
)
CACHED_BLOCKS: Final = Gauge(
    "tailrace_cached_blocks", "Blocks in the engine's prefix cache, by its own events"
)
SESSION_LOOKUPS: Final = Counter(
    "tailrace_session_lookups",
    "Conversation sessions: hit, rebuilt from the log, lost",
    ["outcome"],
)


# Pools are few, and binding a label at every event costs as much as observing.
@functools.cache
def inter_token_seconds(pool: str) -> Histogram:
    """INTER_TOKEN_SECONDS of one pool."""
    return INTER_TOKEN_SECONDS.labels(pool=pool)


def exposition() -> tuple[bytes, str]:
    """All metrics as a scraper reads them, and the content type."""
    return prometheus_client.generate_latest(), prometheus_client.CONTENT_TYPE_LATEST
