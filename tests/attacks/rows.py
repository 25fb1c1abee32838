"""The attacks that a deployment withstands, and the tests that show it.

`python -m tests.attacks` (`make attacks`) runs them all and prints this table with each verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes:
        tests: where it is made; `file::function` from the root of the repository.
    """

    number: int
    name: str
    expectation: str
    tests: tuple[str, ...]


_CREDENTIALS: Final = "tests/attacks/test_credentials.py"
_CONTENT: Final = "tests/attacks/test_content.py"
_JWKS: Final = "tests/unit/tailrace/auth/test_jwks.py"
_VERIFICATION: Final = "tests/unit/tailrace/auth/test_verification.py"
_BEFORE: Final = "tests/attacks/test_before_auth.py"
_CONFORMANCE: Final = "tests/attacks/test_conformance.py"
_FRAMES: Final = "tests/attacks/test_frames.py"
_AFTER: Final = "tests/attacks/test_after_auth.py"
_REVOCATION: Final = "tests/attacks/test_revocation.py"
_RECORDS: Final = "tests/attacks/test_forged_records.py"
_FORGED: Final = f"{_CREDENTIALS}::test_every_forged_credential_is_refused_and_told_the_same"

ATTACKS: Final = (
    Attack(1, "alg: none", "401, one message for all causes", (_FORGED,)),
    Attack(2, "RS to HS confusion", "401, one message for all causes", (_FORGED,)),
    Attack(
        3,
        "key ids: paths, SQL, unknown",
        "401, no file or address is opened; unknown ones fetch keys once per cooldown",
        (
            _FORGED,
            f"{_JWKS}::test_a_thousand_unknown_key_ids_cause_one_fetch_per_cooldown",
        ),
    ),
    Attack(
        4,
        "jku, x5u, embedded jwk",
        "401, no connection is made",
        (f"{_CREDENTIALS}::test_no_header_makes_a_service_call_anybody",),
    ),
    Attack(
        5,
        "claims missing or of a wrong type",
        "401, never 500",
        (
            _FORGED,
            f"{_VERIFICATION}::test_any_signed_header_and_claims_give_a_principal_or_a_reason_and_no_defect",
        ),
    ),
    Attack(
        6,
        "clocks apart",
        "accepted within the leeway only",
        (
            f"{_CREDENTIALS}::test_a_good_credential_is_good_within_the_leeway_only",
            f"{_VERIFICATION}::test_times_are_accepted_exactly_by_the_rule",
        ),
    ),
    Attack(
        7,
        "a weak secret",
        "the process does not start",
        (f"{_CREDENTIALS}::test_a_weak_secret_stops_the_start",),
    ),
    Attack(
        8,
        "huge, compressed and deep credentials",
        "401 or 431, memory flat",
        (f"{_CREDENTIALS}::test_huge_credentials_cost_nothing",),
    ),
    Attack(
        9,
        "keys rotate, or cannot be fetched",
        "a new key works at once, an old set serves for a day",
        (
            f"{_JWKS}::test_a_rotated_key_works_at_once_and_a_removed_one_stops",
            f"{_JWKS}::test_an_old_set_serves_for_a_day_and_then_fails_closed",
        ),
    ),
    Attack(
        10,
        "a credential expires on an open socket or stream",
        "told 60 s before, a new one is taken; else closed",
        (
            f"{_AFTER}::test_a_credential_ends_on_an_open_socket_unless_a_new_one_is_shown",
            f"{_AFTER}::test_a_stream_ends_with_its_credential",
        ),
    ),
    Attack(
        11,
        "a revoked user",
        "everything open ends within 2 s everywhere; Redis decides nothing",
        (
            f"{_REVOCATION}::test_what_is_open_for_a_revoked_user_ends_everywhere",
            f"{_REVOCATION}::test_one_credential_of_a_user_and_a_whole_tenant",
            f"{_REVOCATION}::test_an_instance_that_starts_lets_no_revoked_user_in",
            f"{_REVOCATION}::test_redis_decides_nothing",
        ),
    ),
    Attack(
        12,
        "a page of another origin",
        "403 before the socket is open",
        (f"{_BEFORE}::test_a_foreign_origin_is_refused_before_the_socket_is_open",),
    ),
    Attack(
        13, "Host headers", "decide nothing", (f"{_BEFORE}::test_a_host_header_decides_nothing",)
    ),
    Attack(
        14,
        "another user's response",
        "404, the same body and the same work as for an unknown one",
        (
            f"{_AFTER}::test_a_response_of_somebody_else_is_as_unknown_as_an_unknown_one",
            f"{_AFTER}::test_an_item_of_somebody_else_is_as_unknown_as_an_unknown_one",
            f"{_AFTER}::test_a_file_of_somebody_else_is_as_unknown_as_an_unknown_one",
        ),
    ),
    Attack(
        15,
        "a ticket again, of another origin, too old",
        "401",
        (
            f"{_AFTER}::test_a_ticket_works_once",
            f"{_FRAMES}::test_a_ticket_is_good_for_one_socket_from_its_origin",
        ),
    ),
    Attack(
        16,
        "huge messages, tiny frames, endless fragments, pings",
        "1008 or 1009, memory flat",
        (
            f"{_FRAMES}::test_a_flood_of_small_frames_is_closed",
            f"{_FRAMES}::test_a_client_that_pings_without_reading_is_not_read",
            f"{_FRAMES}::test_many_sockets_with_messages_that_do_not_end_keep_little",
            "tests/attacks/test_frame_budget.py::test_many_sockets_below_their_bounds_are_slowed_down",
            f"{_AFTER}::test_creates_that_wait_take_the_bytes_that_they_have",
        ),
    ),
    Attack(
        17,
        "compressed frames",
        "not negotiated",
        (f"{_FRAMES}::test_compression_is_not_agreed_on",),
    ),
    Attack(
        18,
        "slow, half-sent and silent connections",
        "closed after 5 and 10 s; caps per address, per user and in total",
        (
            f"{_BEFORE}::test_a_head_without_an_end_is_cut",
            f"{_BEFORE}::test_many_heads_that_stop_below_the_bound_are_closed_in_time",
            f"{_BEFORE}::test_connections_that_never_ask_are_closed",
            f"{_BEFORE}::test_connections_of_one_address_are_capped_and_others_get_in",
            f"{_BEFORE}::test_the_admin_port_has_the_same_bounds",
            f"{_FRAMES}::test_sockets_of_one_user_are_capped",
            f"{_BEFORE}::test_requests_without_a_pause_between_them_are_cut",
            f"{_BEFORE}::test_refused_credentials_have_a_rate",
        ),
    ),
    Attack(
        19,
        "a client that does not read",
        "cut, no other user notices",
        (f"{_BEFORE}::test_readers_that_do_not_read_are_cut",),
    ),
    Attack(
        20,
        "violations of HTTP and of the WebSocket protocol",
        "400, 1002, 1007: refused and closed; Autobahn's cases pass",
        (
            f"{_CONFORMANCE}::test_the_protocol_is_kept_by_the_socket_that_creates",
            f"{_CONFORMANCE}::test_the_watch_socket_breaks_off_only_where_a_message_is_too_long",
            f"{_CONFORMANCE}::test_what_is_above_a_bound_is_closed_with_its_code_and_nothing_else_is",
            f"{_BEFORE}::test_a_malformed_handshake_gets_an_answer_and_is_closed",
            f"{_BEFORE}::test_what_is_no_http_is_refused",
            f"{_FRAMES}::test_what_breaks_the_protocol_or_is_too_large_is_closed",
        ),
    ),
    Attack(
        21,
        "messages of any shape",
        "documented errors only",
        (
            f"{_AFTER}::test_messages_of_any_shape_are_answered_in_the_protocol",
            "tests/journey/test_garbage.py::test_bad_messages_on_the_watch_socket_leave_it_open",
        ),
    ),
    Attack(
        22,
        "absurd parameters",
        "400 at the gateway",
        (f"{_AFTER}::test_absurd_parameters_are_refused_and_internal_ones_mean_nothing",),
    ),
    Attack(
        23,
        "the prefix cache across tenants",
        "no hit across tenants or issuers",
        ("tests/contract/test_engine_environment.py::test_vllm_keeps_the_contract",),
    ),
    Attack(
        24,
        "text as HTML, script, terminal codes, event framing",
        "text is data",
        (
            f"{_CONTENT}::test_hostile_text_comes_back_as_the_same_text",
            "tests/journey/test_page.py::test_what_people_and_models_write_is_shown_and_never_run",
        ),
    ),
    Attack(
        25,
        "secrets in logs and metrics",
        "none",
        (f"{_CONTENT}::test_no_log_and_no_metric_holds_a_prompt_an_answer_or_a_credential",),
    ),
    Attack(
        26,
        "a service beyond its duty in Kafka",
        "denied",
        (
            "tests/services/test_kafka_access.py::test_each_service_writes_what_the_table_gives_it",
            "tests/services/test_kafka_access.py::test_each_service_reads_what_the_table_gives_it",
        ),
    ),
    Attack(
        27,
        "FLUSHALL, CONFIG and foreign keys in Redis",
        "denied",
        (
            "tests/services/test_redis_access.py::test_nobody_may_administer_or_read_foreign_keys",
            "tests/services/test_redis_access.py::test_no_service_does_anothers_work",
        ),
    ),
    Attack(
        28,
        "internal fields in a client's message",
        "ignored or refused, never in a record",
        (f"{_AFTER}::test_absurd_parameters_are_refused_and_internal_ones_mean_nothing",),
    ),
    Attack(
        29,
        "garbage and forged records in every topic",
        "skipped and counted, partitions go on",
        (
            f"{_CONTENT}::test_garbage_in_every_topic_stalls_nothing",
            f"{_RECORDS}::test_no_forged_record_moves_a_response",
            f"{_RECORDS}::test_no_forged_request_runs",
            f"{_RECORDS}::test_no_forged_revocation_shuts_anybody_out",
        ),
    ),
    Attack(
        30,
        "the supply chain",
        "locks with hashes, an SBOM, licences, an audit that says when it did not run",
        ("tests/unit/scripts/test_supply_chain.py::test_every_locked_package_is_in_the_bill",),
    ),
)
