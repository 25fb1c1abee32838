"""The error for a client if the log does not answer."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from tailrace import log
from tailrace.protocol import errors

T = TypeVar("T")


async def read(operation: Awaitable[T]) -> T:
    """The result of a read. Raises errors.ApiError: 503, the log cannot be read."""
    try:
        return await operation
    except (log.LogUnavailable, log.HistoryLost) as error:
        raise unreadable() from error


async def write(operation: Awaitable[T]) -> T:
    """The result of a change, which may also read the log. Raises errors.ApiError: 400, it is too
    large; 503, the log does not answer."""
    try:
        return await operation
    except log.TooLarge as error:
        raise errors.record_too_large() from error
    except log.AppendFailed as error:
        raise errors.unavailable(
            "The log does not answer. Whether it holds the change is unknown."
        ) from error
    except (log.LogUnavailable, log.HistoryLost) as error:
        raise unreadable() from error


def unreadable() -> errors.ApiError:
    """The error: the log cannot be read."""
    return errors.unavailable("The log cannot be read right now.")
