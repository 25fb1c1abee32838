"""The request partitions that the group has assigned to this worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tailrace import log
from tailrace.log import interfaces
from tailrace.protocol import commits, topics
from worker.queue import commit_tracker


@dataclass(slots=True)
class AssignedPartition:
    """One assigned partition of a request topic.

    Attributes:
        tracker: its offsets; dies with the assignment.
        opened: the token partition is followed from the right place.
        early: records that were read before it was opened.
    """

    tracker: commit_tracker.Tracker = field(default_factory=commit_tracker.Tracker)
    opened: bool = False
    early: list[log.Record] = field(default_factory=list)


class Assignment:
    """The partitions of one rebalance. The next one replaces it; it is never changed.

    Attributes:
        moved: partitions whose committed offset no worker wrote, with the offset to read from.
        _revoked: the group has revoked it; set once.
    """

    def __init__(self, partitions: Iterable[interfaces.TopicPartition] = ()) -> None:
        self.moved: dict[interfaces.TopicPartition, int] = {}
        self._revoked = False
        self._partitions = {tp: AssignedPartition() for tp in partitions}

    def __iter__(self) -> Iterator[tuple[interfaces.TopicPartition, AssignedPartition]]:
        return iter(self._partitions.items())

    def get(self, tp: interfaces.TopicPartition) -> AssignedPartition | None:
        """One partition; None if it is not assigned."""
        return self._partitions.get(tp)

    @property
    def numbers(self) -> list[int]:
        """Partition numbers, of whatever topic."""
        return sorted({p for _, p in self._partitions})

    def holds(self) -> bool:
        """Whether the group has not revoked it."""
        return not self._revoked

    def end(self) -> None:
        """It was revoked: its trackers commit nothing more."""
        self._revoked = True
        for each in self._partitions.values():
            each.tracker.valid = False

    def set_starts(
        self,
        committed: Mapping[interfaces.TopicPartition, tuple[int, str]],
        beginnings: Mapping[interfaces.TopicPartition, int],
    ) -> None:
        """Commits never go below a worker's commit. An offset that another program has moved proves
        nothing: such partitions are read from the beginning, and the fold says which requests have
        ended."""
        for tp, each in self._partitions.items():
            if tp not in committed:
                continue
            if commits.token_offset(committed[tp][1]) is None:
                self.moved[tp] = beginnings[tp]
            else:
                each.tracker.start = committed[tp][0]

    async def commit(self, member: interfaces.GroupMember, position: Callable[[int], int]) -> None:
        """Commit what changed. `position` gives the tail's position in a token partition.

        Raises:
            LogUnavailable: no answer; the next commit includes this one.
        """
        pending: dict[
            interfaces.TopicPartition, tuple[commit_tracker.Tracker, commit_tracker.Commit]
        ] = {}
        for tp, each in self._partitions.items():
            if not each.opened:
                continue
            commit = each.tracker.next_commit(position(tp[1]))
            if commit is not None:
                pending[tp] = each.tracker, commit
        offsets = {tp: (commit.offset, commit.metadata) for tp, (_, commit) in pending.items()}
        if pending and await member.commit(offsets):
            for tracker, commit in pending.values():
                tracker.note_commit(commit)

    async def unread(self, offsets: interfaces.OffsetQueries, name: str) -> int:
        """How many records the assigned partitions of a topic hold that were not read.

        Raises:
            LogUnavailable: no answer.
        """
        trackers = {p: each.tracker for (t, p), each in self._partitions.items() if t == name}
        beginnings = await offsets.beginnings(name, trackers)
        ends = await offsets.ends(name, trackers)
        return sum(
            max(0, ends[p] - max(tracker.last + 1, tracker.start, beginnings[p]))
            for p, tracker in trackers.items()
        )


async def find_fold_starts(
    assignment: Assignment, offsets: interfaces.OffsetQueries, group: str, names: Sequence[str]
) -> dict[int, int]:
    """Where to fold each assigned token partition from.

    It is the lowest token offset that a commit of any class names, and the beginning of the
    partition where requests exist but no worker's commit. The assignment gets the group's committed
    offsets.

    Raises:
        LogUnavailable: no answer.
    """
    partitions = assignment.numbers
    committed = await offsets.committed(group)
    beginnings = await offsets.beginnings(topics.TOKENS, partitions)
    request_beginnings = {
        (name, p): offset
        for name in names
        for p, offset in (await offsets.beginnings(name, partitions)).items()
    }
    request_ends = {name: await offsets.ends(name, partitions) for name in names}
    token_ends = await offsets.ends(topics.TOKENS, partitions)
    assignment.set_starts(committed, request_beginnings)
    starts = {}
    for p in partitions:
        candidates = []
        for name in names:
            commit = committed.get((name, p))
            at = commits.token_offset(commit[1]) if commit is not None else None
            if at is not None or request_ends[name].get(p, 0) > request_beginnings[name, p]:
                candidates.append(at or 0)
        starts[p] = max(beginnings.get(p, 0), min(candidates, default=token_ends[p]))
    return starts
