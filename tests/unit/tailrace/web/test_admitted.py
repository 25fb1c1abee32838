"""What is open for a revoked credential ends, and nothing else."""

from __future__ import annotations

import dataclasses

import pytest

from tailrace.auth.principal import Principal
from tailrace.web import admitted
from tests.support import gateway_parts, memory_delivery

ALICE, BOB = gateway_parts.ALICE, gateway_parts.BOB


@dataclasses.dataclass(eq=False)
class Holder:
    principal: Principal
    ended: int = 0

    def revoke(self) -> None:
        self.ended += 1


def test_all_that_is_open_for_a_revoked_principal_ends_once() -> None:
    known = memory_delivery.no_revocations()
    open_now = admitted.Admitted(known)
    hers, his = [Holder(ALICE) for _ in range(3)], Holder(BOB)
    closed = Holder(ALICE)
    for holder in (*hers, his, closed):
        open_now.add(holder)
    open_now.discard(closed)
    gateway_parts.revoke(known, ALICE)
    known.on_revoked()
    assert [holder.ended for holder in (*hers, his, closed)] == [1, 1, 1, 0, 0]
    assert len(open_now) == 1


def test_what_opens_after_the_check_of_its_credential_and_the_revocation_ends_at_once() -> None:
    known = memory_delivery.no_revocations()
    open_now = admitted.Admitted(known)
    gateway_parts.revoke(known, ALICE)
    late = Holder(ALICE)
    open_now.add(late)
    assert (late.ended, len(open_now)) == (1, 0)


def test_a_new_credential_on_an_open_socket_counts() -> None:
    known = memory_delivery.no_revocations()
    open_now = admitted.Admitted(known)
    socket = Holder(ALICE)
    open_now.add(socket)
    socket.principal = dataclasses.replace(ALICE, issued_at=ALICE.issued_at + 1)
    gateway_parts.revoke(known, ALICE)
    assert socket.ended == 0


@pytest.mark.parametrize("before", [True, False])
async def test_a_request_that_waits_is_told(before: bool) -> None:
    known = memory_delivery.no_revocations()
    open_now = admitted.Admitted(known)
    if before:
        gateway_parts.revoke(known, ALICE)
    with open_now.revoked(ALICE) as revoked:
        assert revoked.done() is before
        if not before:
            gateway_parts.revoke(known, ALICE)
        assert revoked.done()
    assert len(open_now) == 0
