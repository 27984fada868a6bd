"""Hosts, GPUs and claims."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.core.exceptions import ValidationError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster import leases, selectors, services
from cluster.adapters import registry
from cluster.errors import HostInUseError, HostRefusedError, HostUnreachableError, NoRoomError
from cluster.models import (
    Allocation,
    AllocationState,
    Gpu,
    GpuClaim,
    Host,
    HostConnection,
    HostMode,
)
from tests.factories.cluster import AllocationFactory, GpuFactory, HostFactory
from tests.fakes.runtime import FakeRuntime

pytestmark = pytest.mark.django_db


def claim(host: Host, now: datetime, **values: Any) -> Allocation:
    base: dict[str, Any] = {"cpu_millis": 1000, "memory_mib": 1024, "gpus": [], "holder": uuid4()}
    return services.allocation_create(host_name=host.name, now=now, **(base | values))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "docker",
        "process://elsewhere",
        "unix:/var/run/docker.sock",
        "unix://var/run/docker.sock",
        "tcp://host",
        "tcp://host:port",
        "tcp://host:2376",  # without TLS files
        "ssh://user@host",
        "http://host:2375",
    ],
)
def test_an_endpoint_that_cannot_work_is_refused_with_what_to_write(url: str) -> None:
    with pytest.raises(ValidationError) as refused:
        services.host_create(name="a", url=url)

    assert refused.value.message_dict["url"][0]


@pytest.mark.parametrize("name", ["", "A", "a b", "-a", "a-", "a" * 64, "ä"])
def test_a_host_name_is_a_label(name: str) -> None:
    with pytest.raises(ValidationError) as refused:
        services.host_create(name=name, url="process://local")

    assert "name" in refused.value.message_dict


def test_a_new_host_takes_no_work_until_it_was_tested(now: datetime) -> None:
    host = services.host_create(name="a", url="process://local")
    registry.override(lambda _: FakeRuntime())
    try:
        before = selectors.cluster_snapshot(now=now).hosts[0]
        services.host_test(host_id=host.pk, now=now)
        after = selectors.cluster_snapshot(now=now).hosts[0]
    finally:
        registry.override(None)

    assert not before.schedulable
    assert after.schedulable
    assert (after.cpu_millis, after.memory_mib) == (8000, 17_408 - 1024)


@pytest.mark.parametrize(
    ("error", "connection"),
    [
        (HostUnreachableError("a", detail="timed out"), HostConnection.UNREACHABLE),
        (HostRefusedError("a", detail="wrong certificate"), HostConnection.REFUSED),
    ],
)
def test_a_failed_test_is_stored_with_its_words(
    now: datetime, error: Exception, connection: HostConnection
) -> None:
    class Failing(FakeRuntime):
        def describe(self) -> Any:
            raise error

    host = HostFactory(new=True)
    registry.override(lambda _: Failing())
    try:
        with pytest.raises(type(error)):
            services.host_test(host_id=host.pk, now=now)
    finally:
        registry.override(None)

    host.refresh_from_db()
    assert host.connection == connection
    assert str(error) in host.connection_text


def test_a_host_is_removed_only_when_nothing_holds_a_part_of_it(now: datetime) -> None:
    host = HostFactory(gpus=1)
    allocation = claim(host, now, gpus=[(host.gpus.get().uuid, None)])

    with pytest.raises(HostInUseError, match="1 container"):
        services.host_remove(host_id=host.pk)
    services.allocation_quarantine(holder=allocation.holder, reason="silent")
    with pytest.raises(HostInUseError):
        services.host_remove(host_id=host.pk)
    services.allocation_release(holder=allocation.holder, now=now)
    services.host_remove(host_id=host.pk)

    assert not Host.objects.exists()
    assert not Gpu.objects.exists()


def test_a_host_that_is_gone_for_good_takes_its_quarantined_claims_along(now: datetime) -> None:
    host = HostFactory()
    held, kept = claim(host, now), claim(host, now)
    services.allocation_quarantine(holder=kept.holder, reason="silent")

    with pytest.raises(HostInUseError):
        services.host_remove(host_id=host.pk, is_gone=True)
    services.allocation_quarantine(holder=held.holder, reason="silent")
    services.host_remove(host_id=host.pk, is_gone=True)

    assert not Allocation.objects.exists()


class TestClaims:
    def test_free_is_computed_and_never_counted(self, now: datetime) -> None:
        host = HostFactory()
        first = claim(host, now, cpu_millis=3000)
        claim(host, now, cpu_millis=2000)

        state = selectors.cluster_snapshot(now=now).hosts[0]
        assert state.cpu_free_millis == 3000
        services.allocation_release(holder=first.holder, now=now)
        services.allocation_release(holder=first.holder, now=now)

        state = selectors.cluster_snapshot(now=now).hosts[0]
        assert state.cpu_free_millis == 6000

    def test_a_second_claim_of_one_holder_is_the_first(self, now: datetime) -> None:
        host = HostFactory()
        holder = uuid4()

        assert claim(host, now, holder=holder) == claim(host, now, holder=holder)
        assert Allocation.objects.count() == 1

    @pytest.mark.parametrize(
        "asked", [{"cpu_millis": 8001}, {"memory_mib": 16_385}, {"gpus": [("GPU-none", None)]}]
    )
    def test_more_than_there_is_is_refused_and_leaves_nothing(
        self, now: datetime, asked: dict[str, Any]
    ) -> None:
        with pytest.raises(NoRoomError):
            claim(HostFactory(), now, **asked)

        assert Allocation.objects.count() == 0

    @pytest.mark.parametrize(
        "host", [{"mode": HostMode.CORDONED}, {"connection": HostConnection.UNREACHABLE}]
    )
    def test_a_host_that_takes_no_work_gives_no_room(
        self, now: datetime, host: dict[str, Any]
    ) -> None:
        with pytest.raises(NoRoomError):
            claim(HostFactory(**host), now)

    @pytest.mark.parametrize(
        ("first", "second", "fits"),
        [
            (None, None, False),
            (None, 1, False),
            (1, None, False),
            (6000, 4000, True),
            (6000, 4001, False),
        ],
    )
    def test_a_gpu_is_whole_or_shared_by_its_memory(
        self, now: datetime, first: int | None, second: int | None, fits: bool
    ) -> None:
        host = HostFactory()
        gpu = GpuFactory(host=host, memory_total_mib=10_000)
        claim(host, now, gpus=[(gpu.uuid, first)])

        if fits:
            claim(host, now, gpus=[(gpu.uuid, second)])
        else:
            with pytest.raises(NoRoomError):
                claim(host, now, gpus=[(gpu.uuid, second)])
            assert GpuClaim.objects.count() == 1

    def test_a_gpu_that_takes_no_work_is_not_given(self, now: datetime) -> None:
        host = HostFactory()
        stale = GpuFactory(host=host, reported_at=now - timedelta(minutes=1))
        off = GpuFactory(host=host, is_enabled=False)
        lost = GpuFactory(host=host, health="quarantined")

        for gpu in (stale, off, lost):
            with pytest.raises(NoRoomError, match=gpu.uuid):
                claim(host, now, gpus=[(gpu.uuid, None)])

    def test_a_quarantined_claim_keeps_its_room(self, now: datetime) -> None:
        host = HostFactory()
        gpu = GpuFactory(host=host)
        held = claim(host, now, gpus=[(gpu.uuid, None)])

        assert services.allocation_quarantine(holder=held.holder, reason="silent")
        with pytest.raises(NoRoomError):
            claim(host, now, gpus=[(gpu.uuid, None)])
        assert services.allocation_release(holder=held.holder, now=now)
        claim(host, now, gpus=[(gpu.uuid, None)])

    def test_a_released_claim_is_never_quarantined(self, now: datetime) -> None:
        held = AllocationFactory()
        services.allocation_release(holder=held.holder, now=now)

        assert not services.allocation_quarantine(holder=held.holder, reason="late")
        held.refresh_from_db()
        assert held.state == AllocationState.RELEASED

    @settings(
        max_examples=30,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(
        steps=st.lists(
            st.tuples(
                st.sampled_from(["claim", "release", "quarantine"]),
                st.integers(0, 5),
                st.integers(0, 5000),
                st.none() | st.integers(1, 6000),
            ),
            max_size=25,
        )
    )
    def test_the_room_is_never_given_twice_whatever_comes(
        self, steps: list[tuple[str, int, int, int | None]], now: datetime
    ) -> None:
        host = HostFactory(cpu_millis=6000)
        gpu = GpuFactory(host=host)
        holders = [uuid4() for _ in range(6)]
        for act, index, amount, gpu_mib in steps:
            holder = holders[index]
            if act == "claim":
                try:
                    claim(host, now, holder=holder, cpu_millis=amount, gpus=[(gpu.uuid, gpu_mib)])
                except NoRoomError:
                    continue
            elif act == "release":
                services.allocation_release(holder=holder, now=now)
            else:
                services.allocation_quarantine(holder=holder, reason="test")
            active = list(GpuClaim.objects.filter(gpu=gpu, active=True))
            state = next(
                s for s in selectors.cluster_snapshot(now=now).hosts if s.name == host.name
            )
            assert state.cpu_free_millis >= 0
            assert sum(row.memory_mib for row in active) <= gpu.memory_total_mib
            assert len(active) == 1 or not any(row.exclusive for row in active)


class TestLeases:
    TTL = timedelta(seconds=20)

    def take(self, holder: str, now: datetime) -> int | None:
        return leases.acquire(name="x", holder=holder, ttl=self.TTL, now=now)

    def test_one_holds_it_and_the_fence_grows_with_every_holder(self, now: datetime) -> None:
        assert self.take("a", now) == 1
        assert self.take("b", now) is None
        assert self.take("b", now + self.TTL) == 2
        leases.release(name="x", holder="a")  # too late: it is b's
        assert self.take("a", now + self.TTL) is None
        leases.release(name="x", holder="b")

        assert self.take("a", now + self.TTL) == 3

    def test_a_block_gives_it_back_even_when_it_fails(self, now: datetime) -> None:
        def failing() -> None:
            with leases.held(name="x", holder="a", ttl=self.TTL, now=now) as fence:
                assert fence == 1
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            failing()

        assert self.take("b", now) == 2


def test_a_snapshot_costs_the_same_however_many_hosts(
    now: datetime, django_assert_num_queries: Any
) -> None:
    for _ in range(10):
        host = HostFactory(gpus=4)
        AllocationFactory(host=host)

    with django_assert_num_queries(4):
        selectors.cluster_snapshot(now=now)


def test_a_silent_host_is_asked_again_after_growing_pauses(now: datetime) -> None:
    host = HostFactory()
    pauses = []
    for _ in range(8):
        services.host_silent(host_id=host.pk, text="no answer", now=now)
        host.refresh_from_db()
        pauses.append((host.quiet_until - now).total_seconds())

    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60]
    assert selectors.hosts_to_visit(now=now) == []
    services.host_answered(host_id=host.pk)
    assert selectors.hosts_to_visit(now=now) == [host.name]
