"""What a client is told when a response cannot be delivered, or was asked for wrongly."""

from __future__ import annotations

from starlette.responses import JSONResponse

from tailrace import log
from tailrace.delivery import delivery
from tailrace.protocol import errors

DELIVERY_ERRORS = (errors.ApiError, delivery.NotFound, log.HistoryLost, log.LogUnavailable)


def api_error(rid: str | None, e: Exception) -> errors.ApiError:
    """What a client is told when a response cannot be delivered."""
    shown = rid or ""
    if isinstance(e, errors.ApiError):
        return e
    if isinstance(e, delivery.NotFound):
        return errors.response_not_found(shown)
    if isinstance(e, log.HistoryLost):
        return errors.history_lost(shown)
    if isinstance(e, log.TooLarge):  # an unavailable log would be tried again and again
        return errors.record_too_large()
    if isinstance(e, log.LogUnavailable):
        return errors.unavailable("The log cannot be read right now.")
    raise e


def error_response(e: errors.ApiError) -> JSONResponse:
    """An error as HTTP answer."""
    return JSONResponse(errors.http_body(e), e.status, headers=dict(e.headers))


def cursor(value: str | None) -> int:
    """`starting_after` of a query; absent means from the beginning.

    Raises:
        errors.ApiError: not an integer >= 0.
    """
    if value is None:
        return -1
    if not value.isascii() or not value.isdigit() or len(value) > 15:
        raise errors.invalid_request(
            "starting_after must be an integer", "starting_after", "invalid_value"
        )
    return int(value)
