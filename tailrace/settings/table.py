"""Every variable that the services, and the commands that start them, read.

A new setting is a row here and a field of the dataclass that reads it (`services.py`).
`docs/operations.md` and the gate for the manifests (`k8s/gate/wiring.py`) are made from this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tailrace import engines
from tailrace.settings import kinds, pools_file, shapes

GATEWAY, PUSH, WORKER, ARCHIVE, COMMAND = "gateway", "push", "worker", "archive", "tailrace"
EDGES: Final = (GATEWAY, PUSH)
POOLED: Final = (GATEWAY, PUSH, WORKER)
SERVICES: Final = (*POOLED, ARCHIVE)
EVERYWHERE: Final = (*SERVICES, COMMAND)

MAX_WS_BYTES: Final = 128 * 1024
MAX_HTTP_BYTES: Final = 512 * 1024


class Cluster(Enum):
    """What a manifest of a service says about a variable."""

    REQUIRED = "has to give it"
    OPTIONAL = "may give it"
    FORBIDDEN = "must not give it"


@dataclass(frozen=True, slots=True)
class Variable:
    """One row.

    Attributes:
        readers: services that read it, and `tailrace` for the command line.
        default: the text for a variable that is not set, by reader where they differ;
            None: it has to be set. Empty: the kind's `absent`.
        field: name of the value in the settings of its readers; empty for variables that are read
            elsewhere (by libraries, or as marks of processes).
        secret: its value is never shown.
        shown_default: the text of the documents instead of the default.
    """

    name: str
    field: str
    readers: tuple[str, ...]
    kind: kinds.Kind
    meaning: str
    default: str | Mapping[str, str] | None = ""
    unit: str = ""
    secret: bool = False
    cluster: Cluster = Cluster.OPTIONAL
    shown_default: str = ""

    def default_for(self, reader: str) -> str | None:
        """The default that one reader has."""
        if isinstance(self.default, Mapping):
            return self.default.get(reader, "")
        return self.default


VARIABLES: Final = (
    Variable(
        "TAILRACE_KAFKA",
        "kafka",
        EVERYWHERE,
        kinds.KAFKA,
        "`host:port,…`, or `sasl+ssl://USER@host:port,…?password_file=PATH&ca_file=PATH` "
        "for TLS with SCRAM-SHA-512. `tailrace up` starts a broker if it is not set",
        dict.fromkeys(SERVICES, "127.0.0.1:9092"),
        secret=True,
        cluster=Cluster.REQUIRED,
    ),
    Variable(
        "TAILRACE_KAFKA_PUBLIC_API",
        "kafka_public_api",
        SERVICES,
        kinds.integer(0, 1),
        "1: the log client uses no private part of aiokafka, and is slower after failures; "
        "automatic where these parts changed",
        "0",
    ),
    Variable(
        "TAILRACE_RECORD_KEYS",
        "record_keys",
        SERVICES,
        kinds.RECORD_KEYS,
        "key file of `tailrace keys`, the same for all services: records without a valid "
        "tag have no effect; not set: no tags",
        cluster=Cluster.REQUIRED,
    ),
    Variable(
        "TAILRACE_REDIS",
        "redis",
        (*POOLED, COMMAND),
        kinds.REDIS,
        "URL of Redis; with TLS `rediss://user:password@host:6379/0?ssl_ca_certs=PATH`. `tailrace "
        "up` starts its own when it is not set",
        dict.fromkeys(POOLED, "redis://127.0.0.1:6379/0"),
        secret=True,
        cluster=Cluster.REQUIRED,
    ),
    Variable(
        "TAILRACE_REDIS_CACHE",
        "redis_cache",
        (GATEWAY, WORKER),
        kinds.REDIS,
        "URL of a second Redis, which may evict: conversations and prefixes. The first one "
        "must evict nothing",
        shown_default="`TAILRACE_REDIS`",
        secret=True,
        cluster=Cluster.REQUIRED,
    ),
    Variable(
        "TAILRACE_ARCHIVE",
        "archive",
        (*EDGES, ARCHIVE),
        kinds.ARCHIVE,
        "URL of the archive's database: `sqlite:///PATH` or "
        "`postgresql://user:password@host/name?ca_file=PATH`. Not set: only the log is read",
        secret=True,
        cluster=Cluster.REQUIRED,
    ),
    Variable(
        "TAILRACE_NAME",
        "name",
        SERVICES,
        kinds.TEXT,
        "name of this instance in log lines, heartbeats and claims",
        {GATEWAY: "gateway-1", PUSH: "push-1", WORKER: "worker", ARCHIVE: "archive"},
        cluster=Cluster.REQUIRED,
    ),
    Variable(
        "TAILRACE_HOST",
        "host",
        SERVICES,
        kinds.HOST,
        "address to listen on, for clients and for the admin port",
        "127.0.0.1",
        cluster=Cluster.REQUIRED,
    ),
    Variable(
        "TAILRACE_PORT",
        "port",
        EDGES,
        kinds.integer(1, 65_535),
        "port for clients",
        {GATEWAY: "8000", PUSH: "8001"},
        cluster=Cluster.REQUIRED,
    ),
    Variable(
        "TAILRACE_ADMIN_PORT",
        "admin_port",
        SERVICES,
        kinds.integer(0, 65_535),
        "port of `/health`, `/ready` and `/metrics`; 0: none. Never the port that clients reach",
        "0",
        cluster=Cluster.REQUIRED,
    ),
    Variable(
        "TAILRACE_POOLS",
        "pools",
        POOLED,
        pools_file.POOLS,
        "the pools of models: a YAML file, read again when it changes, or inline JSON. The "
        "first pool's first model is the default",
        '{"default":{"models":["' + shapes.DEFAULT_MODEL + '"]}}',
        cluster=Cluster.REQUIRED,
    ),
    Variable(
        "TAILRACE_DRAIN_S",
        "drain_s",
        POOLED,
        kinds.duration(0, 3600),
        "how long running work may take after SIGTERM",
        {GATEWAY: "10", PUSH: "10", WORKER: "5"},
        "s",
        cluster=Cluster.REQUIRED,
    ),
    Variable(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "otlp_endpoint",
        SERVICES,
        kinds.URL,
        "URL for spans; not set: none. OpenTelemetry's other `OTEL_…` variables apply too",
        cluster=Cluster.REQUIRED,
    ),
    Variable(
        "TAILRACE_ISSUERS",
        "issuers",
        EDGES,
        kinds.file(),
        "JSON file of issuers whose credentials are accepted; see below",
        None,
        cluster=Cluster.REQUIRED,
    ),
    Variable(
        "TAILRACE_ORIGINS",
        "origins",
        EDGES,
        kinds.ORIGINS,
        "browser origins that may connect",
        cluster=Cluster.REQUIRED,
    ),
    Variable(
        "TAILRACE_TRUSTED_PROXIES",
        "trusted_proxies",
        EDGES,
        kinds.NETWORKS,
        "proxies whose `X-Forwarded-For` is believed: a client's address is its last entry "
        "outside these networks",
        cluster=Cluster.REQUIRED,
    ),
    Variable(
        "TAILRACE_PUSH_URL",
        "push_urls",
        (GATEWAY,),
        kinds.URLS,
        "base URLs of push for the page",
        cluster=Cluster.REQUIRED,
    ),
    Variable(
        "TAILRACE_PAGE",
        "page",
        (GATEWAY,),
        kinds.folder(),
        "folder of the built page; not set: no page",
        cluster=Cluster.REQUIRED,
    ),
    Variable(
        "TAILRACE_PAGE_TITLES",
        "page_titles",
        (GATEWAY,),
        kinds.integer(0, 1),
        "1: the page asks the model for a title after the first answer of a chat; 0: the "
        "first question is the title",
        "1",
    ),
    Variable(
        "TAILRACE_ACCEPT_MS",
        "accept_s",
        (GATEWAY,),
        kinds.duration(0, 600_000, 1000),
        "how long a draining gateway still accepts requests, so that balancers notice first",
        "1000",
        "ms",
        cluster=Cluster.REQUIRED,
    ),
    Variable(
        "TAILRACE_CANCEL_GRACE_MS",
        "cancel_grace_s",
        (GATEWAY,),
        kinds.duration(0, 600_000, 1000),
        "how long a response that is not stored outlives its connection",
        "5000",
        "ms",
    ),
    Variable(
        "TAILRACE_PREFIX_AFFINITY",
        "prefix_affinity",
        (GATEWAY,),
        kinds.integer(0, 1),
        "1: responses are placed by the engines' prefix caches and the workers' load; 0: by"
        " partition and this gateway's own load",
        "1",
    ),
    Variable(
        "TAILRACE_VECTORS",
        "vectors",
        (GATEWAY,),
        kinds.VECTORS,
        "the vector database: an absolute folder for milvus-lite, or the URL of Milvus. "
        "Needs `tailrace[retrieval]`. Not set: no vector stores",
        secret=True,
    ),
    Variable(
        "TAILRACE_VECTORS_MODEL",
        "vectors_model",
        (GATEWAY,),
        kinds.TEXT,
        "model that embeds for vector stores, the same for all gateways. Files added under "
        "another model are not found",
    ),
    Variable(
        "TAILRACE_RECORDS_VERSION",
        "records_version",
        (GATEWAY,),
        kinds.integer(1, 2),
        "newest version of records that the gateway writes; 2 serves tools, formats and log"
        " probabilities, once all services know that version",
        "1",
    ),
    Variable(
        "TAILRACE_CONNECTION_LIMIT_S",
        "connection_limit_s",
        (GATEWAY,),
        kinds.duration(1, 86_400),
        "longest lifetime of a WebSocket",
        "3600",
        "s",
    ),
    Variable(
        "TAILRACE_HTTP_MAX_BYTES",
        "max_http_bytes",
        (GATEWAY,),
        kinds.integer(1024, 2**24),
        "largest body of a request, without its images",
        str(MAX_HTTP_BYTES),
        "bytes",
    ),
    Variable(
        "TAILRACE_WS_MAX_BYTES",
        "max_ws_bytes",
        (GATEWAY,),
        kinds.integer(1024, 2**24),
        "largest message on a WebSocket",
        str(MAX_WS_BYTES),
        "bytes",
    ),
    Variable(
        "TAILRACE_LIMITS",
        "limits",
        EDGES,
        kinds.Kind("a JSON object of limits", shapes.limits, shapes.Limits()),
        "rates and caps per principal and in total, see below",
        "{}",
    ),
    Variable(
        "TAILRACE_SESSION_KEY",
        "session_keys",
        (GATEWAY,),
        kinds.secret_lines(32),
        "file with a key on each line, the same for all gateways: seals browser sessions, "
        "`encrypted_content` and links. The first line seals, all open",
        cluster=Cluster.REQUIRED,
    ),
    Variable(
        "TAILRACE_DEV_CREDENTIAL",
        "dev_credential",
        (GATEWAY,),
        kinds.file(must_exist=False),
        "file with a development credential for the page; set by `tailrace up`",
        cluster=Cluster.FORBIDDEN,
    ),
    Variable(
        "TAILRACE_POOL",
        "pool",
        (WORKER,),
        kinds.POOL,
        "pool that this worker serves; one of `TAILRACE_POOLS`",
        "default",
        cluster=Cluster.REQUIRED,
    ),
    Variable(
        "TAILRACE_ENGINE",
        "engine",
        (WORKER, COMMAND),
        kinds.ENGINE,
        engines.CHOICES,
        engines.DEFAULT,
        cluster=Cluster.REQUIRED,
    ),
    Variable(
        "TAILRACE_ENGINE_KEY",
        "engine_key",
        (WORKER,),
        kinds.TEXT,
        "API key for an engine at a URL",
        secret=True,
    ),
    Variable(
        "TAILRACE_ENGINE_KEY_FILE",
        "engine_key_file",
        (WORKER,),
        kinds.file(),
        "file with that key, instead of `TAILRACE_ENGINE_KEY`; read at every request, so that a "
        "key may be rotated",
    ),
    Variable(
        "TAILRACE_ENGINE_TOKEN_URL",
        "engine_token_url",
        (WORKER,),
        kinds.ENDPOINT,
        "token endpoint (OAuth2, client credentials): the engine at a URL gets access "
        "tokens instead of a key",
    ),
    Variable(
        "TAILRACE_ENGINE_CLIENT_ID",
        "engine_client_id",
        (WORKER,),
        kinds.TEXT,
        "client id at the token endpoint",
    ),
    Variable(
        "TAILRACE_ENGINE_CLIENT_SECRET_FILE",
        "engine_client_secret_file",
        (WORKER,),
        kinds.file(),
        "file with the client's secret; read whenever a token is fetched",
    ),
    Variable(
        "TAILRACE_ENGINE_SCOPE",
        "engine_scope",
        (WORKER,),
        kinds.TEXT,
        "`scope` of the tokens",
    ),
    Variable(
        "TAILRACE_ENGINE_AUDIENCE",
        "engine_audience",
        (WORKER,),
        kinds.TEXT,
        "`audience` of the tokens",
    ),
    Variable(
        "TAILRACE_ENGINE_CONTINUATION",
        "engine_continuation",
        (WORKER,),
        kinds.one_of("auto", "on", "off"),
        "whether an engine at a URL continues text that another attempt has begun "
        "(`continue_final_message`); auto: tested at the start",
        "auto",
    ),
    Variable(
        "TAILRACE_ENGINE_STALL_S",
        "stall_s",
        (WORKER,),
        kinds.duration(1, 3600),
        "how long a running engine may produce no token before its worker fails",
        "60",
        "s",
    ),
    Variable(
        "TAILRACE_VLLM_PUBLIC_API",
        "vllm_public_api",
        (WORKER,),
        kinds.integer(0, 1),
        "1: the vllm engine uses no private part of vLLM, which is slower; "
        "automatic where these parts changed",
        "0",
    ),
    Variable(
        "TAILRACE_TOOL_PARSER",
        "tool_parser",
        (WORKER,),
        kinds.TEXT,
        "vLLM's parser of tool calls (`hermes`, …), `none`, or `auto`: by the model's type and its "
        "chat template, if that shows tools",
        "auto",
    ),
    Variable(
        "TAILRACE_REASONING_PARSER",
        "reasoning_parser",
        (WORKER,),
        kinds.TEXT,
        "vLLM's parser of reasoning (`qwen3`, …), `none`, or `auto`: by the model, for "
        "requests with tools, formats, an effort or log probabilities",
        "auto",
    ),
    Variable(
        "TAILRACE_MODEL",
        "model",
        (WORKER, COMMAND),
        kinds.TEXT,
        "model folder or hub name; the vllm engine needs it",
        shown_default="the pool's `source`, else `TAILRACE_MODEL_NAME`",
        cluster=Cluster.REQUIRED,
    ),
    Variable(
        "TAILRACE_MODEL_NAME",
        "model_name",
        (WORKER,),
        kinds.TEXT,
        "public id of the model",
        shown_default="the pool's first model",
        cluster=Cluster.REQUIRED,
    ),
    Variable(
        "TAILRACE_MAX_NUM_SEQS",
        "max_num_seqs",
        (WORKER,),
        kinds.integer(1, 65_536),
        "responses that the engine runs at once",
        shown_default=", ".join(
            f"{kind.max_num_seqs} with {kind.name or 'a URL'}" for kind in engines.TABLE
        ),
        cluster=Cluster.REQUIRED,
    ),
    Variable(
        "TAILRACE_PRINCIPAL_SHARE",
        "principal_share",
        (WORKER,),
        kinds.percent(1),
        "largest share of a worker's engine for one principal while another one waits; an equal "
        "part if that is less",
        "50",
        "%",
    ),
    Variable(
        "TAILRACE_PRINCIPAL_LIMIT",
        "principal_limit",
        (WORKER,),
        kinds.percent(1),
        "largest share of a worker's engine for one principal at any time. Below 100 the rest "
        "stays free for others",
        "100",
        "%",
    ),
    Variable(
        "TAILRACE_BATCH_SHARE",
        "batch_share",
        (WORKER,),
        kinds.percent(0, 99),
        "smallest share of a worker's tokens for waiting batch requests (`service_tier` `flex`); "
        "0: only what interactive requests leave",
        "10",
        "%",
    ),
    Variable(
        "TAILRACE_PAUSE_MS",
        "pause_s",
        (WORKER,),
        kinds.duration(0, 20_000, 1000),
        "how long a paused answer waits before it goes ahead of others; 0: no pauses",
        "10000",
        "ms",
    ),
    Variable(
        "TAILRACE_WEIGHTS",
        "weights",
        (WORKER,),
        kinds.Kind("a JSON object of weights above 0", shapes.weights, {}),
        'weights of tenants where many wait, such as `{"acme": 3}`; 1 for all others',
        "{}",
    ),
    Variable(
        "TAILRACE_STEAL_AFTER_MS",
        "steal_after_s",
        (WORKER,),
        kinds.duration(0, 3_600_000, 1000),
        "an idle worker may run a request that will wait longer than this. 0: never, and "
        "this worker steals none",
        "500",
        "ms",
    ),
    Variable(
        "TAILRACE_TRIALS",
        "trials",
        (WORKER,),
        kinds.folder(must_exist=False),
        "folder for the results of a worker's trials of fields; not set: each start tries all",
    ),
    Variable(
        "TAILRACE_SCRIPT_REVISION",
        "script_revision",
        (WORKER,),
        kinds.TEXT,
        "revision of the scripted engine's model, for tests of upgrades",
        "scripted-1",
    ),
    Variable(
        "TAILRACE_SCRIPT_FIRST_TOKEN_MS",
        "script_first_token_s",
        (WORKER,),
        kinds.duration(0, 60_000, 1000),
        "extra delay of the scripted engine's first token, for tests",
        "0",
        "ms",
    ),
    Variable(
        "TAILRACE_SCRIPT_FAIL_EVERY",
        "script_fail_every",
        (WORKER,),
        kinds.integer(0, 1_000_000),
        "the scripted engine fails every n-th request, for tests; 0: none",
        "0",
    ),
    Variable(
        "TAILRACE_SCRIPT_PREFILL_MS",
        "script_prefill_s",
        (WORKER,),
        kinds.duration(0, 60_000, 1000),
        "time that the scripted engine needs for 1,000 prompt tokens, one prompt after "
        "another, for tests",
        "0",
        "ms",
    ),
    Variable(
        "TAILRACE_SCRIPT_STEPS",
        "script_steps",
        (WORKER,),
        kinds.STEPS,
        "steps of the scripted engine, each of which gives every response a token, as pairs of the "
        "most responses and ms (1:6.1,8:6.2), for tests; without: each at its own pace",
    ),
    Variable(
        "TAILRACE_SCRIPT_CACHE_TOKENS",
        "script_cache_tokens",
        (WORKER,),
        kinds.integer(0, 100_000_000),
        "size of the scripted engine's prefix cache in tokens, for tests; 0: none",
        "0",
    ),
    Variable(
        "TAILRACE_SCRIPT_REFUSES",
        "script_refuses",
        (WORKER,),
        kinds.NAMES,
        "fields (as in `/ready`, member `not_offered`) that the scripted engine refuses, for tests",
    ),
    Variable(
        "TAILRACE_SCRIPT_ENDS",
        "script_ends",
        (WORKER,),
        kinds.NAMES,
        "fields that end the scripted engine, for tests",
    ),
    Variable(
        "TAILRACE_SESSION_TIMEOUT_MS",
        "session_timeout_ms",
        (WORKER,),
        kinds.integer(300, 3_600_000),
        "how long a silent worker keeps its partitions",
        "10000",
        "ms",
        cluster=Cluster.REQUIRED,
    ),
    Variable(
        "TAILRACE_DATA",
        "data",
        (COMMAND,),
        kinds.folder(must_exist=False),
        "data folder of the deployment on this machine",
        shown_default="`tailrace/data` in the user's cache",
    ),
    Variable(
        "TAILRACE_KAFKA_HEAP_MB",
        "kafka_heap_mb",
        (COMMAND,),
        kinds.integer(64, 65_536),
        "heap of the broker that `tailrace up` starts",
        "256",
        "MiB",
    ),
    Variable(
        "TAILRACE_CREDENTIAL",
        "",
        (COMMAND,),
        kinds.TEXT,
        "credential of `tailrace chat` and `locustfile.py`",
        shown_default="a development one",
        secret=True,
    ),
    Variable(
        "TAILRACE_CREDENTIAL_FILE",
        "",
        (COMMAND,),
        kinds.TEXT,
        "file with the credential of `tailrace pipelines run`, read again for each request",
        shown_default="the development one",
    ),
    Variable(
        "TAILRACE_URL",
        "",
        (COMMAND,),
        kinds.TEXT,
        "the gateway that `tailrace pipelines run` asks",
        shown_default="that of the data folder",
    ),
    Variable(
        "TAILRACE_ANALYTICS_STORE",
        "",
        (COMMAND,),
        kinds.TEXT,
        "where the results of analytics are kept: a file of DuckDB, or the http(s) URL of a"
        " ClickHouse database",
    ),
    Variable(
        "TAILRACE_RUN",
        "",
        (COMMAND,),
        kinds.TEXT,
        "mark of all processes of one deployment (run and data folder), by which `tailrace down` "
        "finds them; set by `tailrace up`",
    ),
    Variable(
        "TAILRACE_PART",
        "",
        (COMMAND,),
        kinds.TEXT,
        "mark of one part's processes; set by `tailrace up`",
    ),
    Variable(
        "TAILRACE_ENGINE_PARENT",
        "",
        (WORKER,),
        kinds.TEXT,
        "pid that an engine's processes must not outlive; set by the worker",
        cluster=Cluster.FORBIDDEN,
    ),
    Variable(
        "KAFKA_HOME",
        "",
        (COMMAND,),
        kinds.folder(must_exist=False),
        "a Kafka installation to use instead of the one that `make install` brings",
    ),
)


def read_by(reader: str) -> list[Variable]:
    """The rows of one reader."""
    return [row for row in VARIABLES if reader in row.readers]
