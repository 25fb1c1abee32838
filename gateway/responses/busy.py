"""The predecessor of a turn is still running."""

from __future__ import annotations

from typing import Final

from tailrace.protocol import errors

CONVERSATION: Final = "conversation"


class Busy(Exception):
    """The predecessor of a turn is still running.

    Attributes:
        rid: the predecessor's response; it may not be in the log yet.
        param: the field that named the predecessor.
    """

    def __init__(self, rid: str, param: str) -> None:
        super().__init__(rid)
        self.rid = rid
        self.param = param

    @property
    def error(self) -> errors.ApiError:
        """The error for a client that did not ask to wait."""
        if self.param == CONVERSATION:
            return errors.conversation_locked(self.param, self.rid)
        return errors.invalid_value(self.param, f"Response '{self.rid}' is still in progress.")
