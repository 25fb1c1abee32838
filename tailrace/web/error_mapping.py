"""The errors that clients get: from exceptions to the API's shape of errors.

`HANDLERS` is for the exception handlers of an application; `api_error` is for what delivery and the
log raise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route

from tailrace import log, telemetry
from tailrace.delivery import delivery
from tailrace.protocol import errors

DELIVERY_ERRORS: Final = (
    errors.ApiError,
    delivery.NotFound,
    log.HistoryLost,
    log.LogUnavailable,
)


def api_error(rid: str | None, error: Exception) -> errors.ApiError:
    """The API's error for a response that cannot be delivered or written.

    Raises:
        Exception: `error` itself, if it is not one of `DELIVERY_ERRORS`.
    """
    name = rid or ""
    if isinstance(error, errors.ApiError):
        return error
    if isinstance(error, delivery.NotFound):
        return errors.response_not_found(name)
    if isinstance(error, log.HistoryLost):
        return errors.history_lost(name)
    if isinstance(error, log.TooLarge):  # an unavailable log would be tried again and again
        return errors.record_too_large()
    if isinstance(error, log.LogUnavailable):
        return errors.unavailable("The log cannot be read right now.")
    raise error


def error_response(error: errors.ApiError) -> JSONResponse:
    """An error as HTTP answer; counts it."""
    telemetry.ERRORS.labels(code=error.code or error.type, status=str(error.status)).inc()
    return JSONResponse(errors.http_body(error), error.status, headers=dict(error.headers))


async def _api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.ApiError)
    return error_response(error)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allow = ", ".join(_methods_at(request))
        return error_response(errors.method_not_allowed(request.method, allow))
    return error_response(errors.not_found(request.scope["path"]))


def _methods_at(request: Request) -> list[str]:
    """The methods of the request's path. The framework names those of the first route only."""
    methods = {
        method
        for route in request.app.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
    if "GET" in methods:
        methods.add("HEAD")  # middleware.py
    return sorted(methods)


async def _failed(_request: Request, _error: Exception) -> Response:
    """The framework raises the exception again once this is sent; the middleware logs it."""
    return error_response(errors.server_error())


HANDLERS: Final[Mapping[Any, Any]] = {
    errors.ApiError: _api_error,
    HTTPException: _no_route,
    Exception: _failed,
}


def cursor(value: str | None) -> int:
    """`starting_after` of a query; -1 when absent: from the beginning.

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
