"""Reads a worker's commit of a request partition (pure; log rule §11)."""

from __future__ import annotations


def token_offset(metadata: str) -> int | None:
    """Where to fold from, by the metadata of a commit. None if the metadata is lost or was written
    by another program."""
    return int(metadata) if metadata.isascii() and metadata.isdigit() else None


def finished_below(commit: tuple[int, str] | None) -> int:
    """Every request below this offset is finished, by the (offset, metadata) that a group has
    committed. 0 if the commit is not a worker's: there is none, or another program has moved the
    offset, as Kafka's tools do. These write no metadata."""
    if commit is None or token_offset(commit[1]) is None:
        return 0
    return commit[0]
