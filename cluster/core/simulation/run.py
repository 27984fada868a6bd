"""Runs a workload on simulated hosts under a policy: arrivals, passes, ends, losses."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from cluster.core.errors import BadProblemError
from cluster.core.placement.admission import admit
from cluster.core.placement.problem import Placer
from cluster.core.policy.queue import (
    Queue,
    QueuePolicy,
    ReviewingPolicy,
    RunningJob,
    WaitingJob,
)
from cluster.core.resources import ClusterSnapshot, HostName, Placement, ReplicaPlacement
from cluster.core.simulation.cluster import Shape, SimulatedCluster, shape_of
from cluster.core.simulation.engine import Engine
from cluster.core.simulation.models import (
    ByUtilization,
    ElasticityModel,
    FailureModel,
    Interference,
    PowerModel,
)
from cluster.core.simulation.recorder import Recorder
from cluster.core.simulation.report import JobRecord, Outcome, Report, Span, summed_up
from cluster.core.simulation.runs import Run, Tenants
from cluster.core.simulation.workload import HostChange, HostEvent, Workload, WorkloadJob

Progress = Callable[[float], None]
#: How often progress is told: at every so many parts of the jobs.
_PROGRESS_STEPS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingPolicy:
    """A placer and the order in which it is shown the queue.

    Attributes:
        name: How a person names it: ``placer`` or ``placer+queue``.
    """

    name: str
    placer: Placer
    queue: QueuePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions:
    """What the simulated world is like.

    Attributes:
        host_retries: How often a job is tried again that lost a host.
        queue_limit: How many waiting jobs one pass looks at, as in production.
    """

    interference: Interference = field(default_factory=ByUtilization)
    power: PowerModel = field(default_factory=PowerModel)
    failures: FailureModel = field(default_factory=FailureModel)
    elasticity: ElasticityModel = field(default_factory=ElasticityModel)
    host_retries: int = 3
    queue_limit: int = 5000


def simulate(
    hosts: ClusterSnapshot,
    workload: Workload,
    policy: SchedulingPolicy,
    seed: int = 0,
    *,
    options: SimulationOptions | None = None,
    progress: Progress | None = None,
) -> Report:
    """Return what ``policy`` makes of ``workload`` on ``hosts``.

    Equal arguments give an equal report. What the hosts run already counts as there for ever.

    Args:
        seed: Of chance, which only the failure model of the options knows.
        progress: Called now and then with the share of the jobs that have ended, 0 to 1.

    Raises:
        BadProblemError: If hosts or jobs contradict themselves, or the placer's plan does.
    """
    simulation = _Simulation(hosts, workload, policy, seed, options or SimulationOptions())
    return simulation.run(progress or _untold)


def _untold(_: float) -> None:
    """Tell nobody."""


@dataclass(slots=True)
class _Progress:
    """A job's story so far."""

    job: WorkloadJob
    number: int
    saved_s: float = 0.0
    attempts: int = 0
    program_failures: int = 0
    hosts_lost: int = 0
    first_start_s: float | None = None
    busy_s: float = 0.0
    hosts: tuple[str, ...] = ()
    spans: list[Span] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Arrival:
    story: _Progress


@dataclass(frozen=True, slots=True)
class _End:
    run: Run
    version: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class _Wake:
    """An elastic job's size may change again."""


@dataclass(frozen=True, slots=True)
class _Look:
    """The queue policy wants to look at what runs."""


_Event = _Arrival | _End | _Wake | _Look | HostEvent


class _WaitingLine:
    """The queue, by priority, then submission."""

    def __init__(self) -> None:
        self._order: list[tuple[int, float, int]] = []
        self.jobs: list[WaitingJob] = []

    def __len__(self) -> int:
        return len(self.jobs)

    def add(self, story: _Progress) -> None:
        job = story.job
        key = (-job.priority, job.submitted_s, story.number)
        row = bisect_left(self._order, key)
        self._order.insert(row, key)
        self.jobs.insert(
            row,
            WaitingJob(
                request=job.request,
                submitted_s=job.submitted_s,
                expected_s=job.expected_s,
                priority=job.priority,
                owner=job.owner,
            ),
        )

    def remove(self, story: _Progress) -> None:
        row = bisect_left(self._order, (-story.job.priority, story.job.submitted_s, story.number))
        del self._order[row], self.jobs[row]


class _Simulation:
    """The state between two events."""

    def __init__(
        self,
        hosts: ClusterSnapshot,
        workload: Workload,
        policy: SchedulingPolicy,
        seed: int,
        options: SimulationOptions,
    ) -> None:
        _refuse(workload)
        self._start, self._workload, self._policy = hosts, workload, policy
        self._seed, self._options = seed, options
        self._cluster = SimulatedCluster(hosts)
        self._place = self._cluster.filtered(
            policy.placer.place, hosts_alone=getattr(policy.placer, "hosts_alone", False)
        )
        self._tenants = Tenants(options.interference)
        self._random = np.random.default_rng(seed)
        self._engine: Engine[_Event] = Engine()
        self._waiting = _WaitingLine()
        self._running: dict[str, Run] = {}
        self._views: dict[str, RunningJob] = {}
        self._elastic: dict[str, Run] = {}
        self._stories: dict[str, _Progress] = {}
        self._records: dict[str, JobRecord] = {}
        self._admitted: dict[tuple[Shape, int], bool] = {}
        self._arrivals_left = len(workload.jobs)
        self._returns: dict[HostName, int] = {}
        self._dirty = False
        self._look_s: float | None = None
        self._reviews = isinstance(policy.queue, ReviewingPolicy)
        self._passes = self._resizes = 0
        self._first_s = min((job.submitted_s for job in workload.jobs), default=0.0)
        self._recorder = Recorder(
            self._cluster.hosts,
            (job.request for job in workload.jobs),
            options.power,
            max((job.submitted_s for job in workload.jobs), default=0.0),
        )
        self._schedule_workload()

    def run(self, progress: Progress) -> Report:
        """Let everything happen, and return what came of it."""
        jobs = len(self._workload.jobs)
        step = max(1, jobs // _PROGRESS_STEPS)
        told = 0
        while len(self._records) < jobs:
            self._next_moment()
            if len(self._records) - told >= step:
                told = len(self._records)
                progress(told / jobs)
        progress(1.0)
        if jobs:
            self._recorder.sample(self._engine.now_s, running=0, waiting=0, last=True)
        return summed_up(
            Report(
                policy=self._policy.name,
                workload=self._workload.name,
                seed=self._seed,
                hosts=len(self._start.hosts),
                gpus=sum(len(host.gpus) for host in self._start.hosts),
                jobs=tuple(self._records[job.key] for job in self._workload.jobs),
                passes=self._passes,
                resizes=self._resizes,
                series=self._recorder.series(),
                **self._recorder.means(),
            )
        )

    def _schedule_workload(self) -> None:
        for number, job in enumerate(self._workload.jobs):
            story = self._stories[job.key] = _Progress(job, number)
            self._engine.schedule(job.submitted_s, _Arrival(story))
        for event in self._workload.host_events:
            if not self._cluster.has(event.host):
                raise BadProblemError(f"the workload loses host {event.host}, which is not there")
            self._schedule_host(event)
        if self._options.failures.host_mtbf_s > 0:
            for host in self._start.hosts:
                if host.schedulable:
                    self._schedule_loss(host.name)

    def _schedule_host(self, event: HostEvent) -> None:
        if event.change is HostChange.BACK:
            self._returns[event.host] = self._returns.get(event.host, 0) + 1
        self._engine.schedule(event.at_s, event)

    def _schedule_loss(self, host: HostName) -> None:
        failures = self._options.failures
        lost_s = self._engine.now_s + self._random.exponential(failures.host_mtbf_s)
        back_s = lost_s + self._random.exponential(failures.host_repair_s)
        self._schedule_host(HostEvent(at_s=lost_s, host=host, change=HostChange.LOST))
        self._schedule_host(HostEvent(at_s=back_s, host=host, change=HostChange.BACK))

    def _next_moment(self) -> None:
        """Let all events of the next moment happen, then schedule once."""
        event = self._engine.pop()
        now_s = self._engine.now_s
        if now_s >= self._first_s:
            self._recorder.advance(now_s)
        self._happen(event)
        while self._engine.next_s() == now_s:
            self._happen(self._engine.pop())
        self._review()
        while self._schedule_pass() and self._reviews:
            self._dirty = True
            self._review()
        self._resize()
        self._give_up()
        if now_s >= self._first_s:
            self._recorder.sample(now_s, running=len(self._running), waiting=len(self._waiting))

    def _happen(self, event: _Event) -> None:
        match event:
            case _Arrival():
                self._arrive(event.story)
            case _End() if event.version == event.run.version:
                self._end(event.run, event.outcome)
            case HostEvent():
                self._host_changes(event)
            case _Look():
                self._look_s, self._dirty = None, True
            case _:
                pass

    # Arrivals and passes

    def _arrive(self, story: _Progress) -> None:
        self._arrivals_left -= 1
        request = story.job.request
        key = (shape_of(request), request.replicas)
        if key not in self._admitted:
            self._admitted[key] = admit(request, self._start).possible
        if self._admitted[key]:
            self._enqueue(story)
        else:
            self._close(story, Outcome.UNPLACEABLE)

    def _enqueue(self, story: _Progress) -> None:
        self._waiting.add(story)
        self._cluster.shapes.add(story.job.request)
        self._dirty = True

    def _leave_queue(self, story: _Progress) -> None:
        self._waiting.remove(story)
        self._cluster.shapes.remove(story.job.request)

    def _queue(self) -> Queue:
        return Queue(
            waiting=self._waiting.jobs[: self._options.queue_limit],
            running=list(self._views.values()),
            snapshot=self._cluster.snapshot,
            now_s=self._engine.now_s,
        )

    def _review(self) -> None:
        policy = self._policy.queue
        if not isinstance(policy, ReviewingPolicy) or not self._dirty:
            return
        review = policy.review(self._queue())
        for key in review.stop:
            run = self._running[key]
            story = self._stop(run)
            story.saved_s = max(story.saved_s, run.saved_s())
            self._enqueue(story)
        self._look_again(review.again_s)

    def _look_again(self, again_s: float | None) -> None:
        """Schedule the next look unless an earlier one is scheduled."""
        if again_s is None or again_s <= self._engine.now_s:
            return
        if self._look_s is None or again_s < self._look_s:
            self._look_s = again_s
            self._engine.schedule(again_s, _Look())

    def _schedule_pass(self) -> bool:
        """Place what can be placed, and return whether anything was."""
        if not self._dirty:
            return False
        self._dirty = False
        if not self._waiting or not self._cluster.shapes.any_fits():
            return False
        self._passes += 1
        plan = self._policy.queue.plan(self._queue(), self._place)
        for placement in plan.placements:
            self._begin(placement)
        return bool(plan.placements)

    def _begin(self, placement: Placement) -> None:
        now_s = self._engine.now_s
        story = self._stories.get(placement.key)
        if story is None or placement.key in self._running or placement.key in self._records:
            raise BadProblemError(f"the placer placed {placement.key}, which does not wait")
        job = story.job
        if len(placement.replicas) != job.request.replicas:
            raise BadProblemError(f"the placer placed a part of {placement.key}")
        self._leave_queue(story)
        self._cluster.claim(job.request, placement.replicas)
        story.attempts += 1
        story.hosts = _hosts_of(placement.replicas)
        if story.first_start_s is None:
            story.first_start_s = now_s
        left_s = job.duration_s - story.saved_s
        run = Run(
            job=job,
            replicas=placement.replicas,
            started_s=now_s,
            left_s=left_s,
            fails_left_s=self._fails_left_s(job, left_s),
            updated_s=now_s,
            resized_s=now_s,
            span_s=now_s,
        )
        self._running[job.key] = run
        self._views[job.key] = run.as_running()
        self._tenants.add(run, run.cards)
        self._refresh(run)
        if run.elastic:
            self._elastic[job.key] = run
            self._engine.schedule(now_s + self._options.elasticity.pause_s, _Wake())

    def _fails_left_s(self, job: WorkloadJob, left_s: float) -> float | None:
        chance = self._options.failures.attempt_pct
        if chance and self._random.random() * 100 < chance:
            return float(self._random.random()) * left_s
        if job.fails_after_s is None or job.fails_after_s >= job.duration_s:
            return None
        return min(left_s, job.duration_s - job.fails_after_s)

    # What runs

    def _refresh(self, changed: Run) -> None:
        """Foretell anew the end of a run and of all that share a GPU with it."""
        for run in {changed.job.key: changed, **self._tenants.beside(changed.cards)}.values():
            if run.job.key in self._running:
                self._foretell(run)
        self._measure({replica.host for replica in changed.replicas})

    def _foretell(self, run: Run) -> None:
        speed = self._tenants.speed(run)
        if run.version and speed == run.speed:
            return
        run.advance(self._engine.now_s)
        run.speed = speed
        run.version += 1
        self._views[run.job.key] = run.as_running()
        end_s, outcome = run.ending()
        self._engine.schedule(max(end_s, self._engine.now_s), _End(run, run.version, outcome))

    def _measure(self, hosts: set[HostName]) -> None:
        for name in sorted(hosts):
            row = self._cluster.row_of(name)
            host = self._cluster.hosts[row]
            self._recorder.changed(row, host, self._tenants.busy(host))

    def _stop(self, run: Run) -> _Progress:
        """Take a run off its hosts."""
        now_s = self._engine.now_s
        story = self._stories[run.job.key]
        run.advance(now_s)
        run.version += 1
        story.busy_s += now_s - run.started_s
        self._close_span(run)
        del self._running[run.job.key], self._views[run.job.key]
        self._elastic.pop(run.job.key, None)
        self._tenants.remove(run, run.cards)
        self._cluster.release(run.job.request, run.replicas)
        self._refresh(run)
        self._dirty = True
        return story

    def _close_span(self, run: Run) -> None:
        self._stories[run.job.key].spans.append(
            Span(started_s=run.span_s, ended_s=self._engine.now_s, replicas=run.replicas)
        )

    def _end(self, run: Run, outcome: Outcome) -> None:
        story = self._stop(run)
        if outcome is Outcome.FAILED:
            story.program_failures += 1
            if story.program_failures <= run.job.retries:
                story.saved_s = max(story.saved_s, run.saved_s())
                self._enqueue(story)
                return
        self._close(story, outcome)

    def _close(self, story: _Progress, outcome: Outcome) -> None:
        ended_s = self._engine.now_s if story.first_start_s is not None else None
        self._records[story.job.key] = JobRecord(
            key=story.job.key,
            outcome=outcome,
            submitted_s=story.job.submitted_s,
            duration_s=story.job.duration_s,
            started_s=story.first_start_s,
            ended_s=ended_s,
            busy_s=story.busy_s,
            attempts=story.attempts,
            hosts=story.hosts,
            spans=tuple(story.spans),
            owner=story.job.owner,
        )

    # Hosts

    def _host_changes(self, event: HostEvent) -> None:
        row = self._cluster.row_of(event.host)
        up = event.change is HostChange.BACK
        self._returns[event.host] = self._returns.get(event.host, 0) - up
        if up and self._options.failures.host_mtbf_s > 0:
            self._schedule_loss(event.host)
        if self._cluster.hosts[row].schedulable == up:
            return
        if not up:
            for run in self._running_on(event.host):
                self._lose(run)
        self._cluster.set_up(event.host, up=up)
        self._measure({event.host})
        self._dirty = True

    def _running_on(self, host: HostName) -> list[Run]:
        return [
            run
            for run in self._running.values()
            if any(replica.host == host for replica in run.replicas)
        ]

    def _lose(self, run: Run) -> None:
        story = self._stop(run)
        story.hosts_lost += 1
        if story.hosts_lost > self._options.host_retries:
            self._close(story, Outcome.HOST_LOST)
            return
        story.saved_s = max(story.saved_s, run.saved_s())
        self._enqueue(story)

    def _give_up(self) -> None:
        """Close what waits for a room that nothing can make any more."""
        if self._running or self._arrivals_left or self._dirty or not self._waiting:
            return
        if any(self._returns.get(h.name) and not h.schedulable for h in self._cluster.hosts):
            return
        for job in self._waiting.jobs[: self._options.queue_limit]:
            story = self._stories[job.request.key]
            self._leave_queue(story)
            self._close(story, Outcome.UNPLACEABLE)
        self._dirty = True
        self._engine.schedule(self._engine.now_s, _Wake())

    # Elastic jobs

    def _resize(self) -> None:
        if not self._elastic:
            return
        if self._waiting:
            self._shrink(list(self._elastic.values()))
        else:
            self._grow(list(self._elastic.values()))

    def _may_resize(self, run: Run) -> bool:
        return self._engine.now_s - run.resized_s >= self._options.elasticity.pause_s

    def _shrink(self, elastic: list[Run]) -> None:
        """Take workers back, of the least efficient first, until something that waits starts."""
        large = [
            run
            for run in elastic
            if run.workers > run.job.request.replicas and self._may_resize(run)
        ]
        large.sort(key=lambda run: run.job.scaling(run.workers) / run.workers)
        for run in large:
            self._change_size(run, run.replicas[:-1])
            self._schedule_pass()
            if not self._waiting:
                return

    def _grow(self, elastic: list[Run]) -> None:
        model = self._options.elasticity
        for run in elastic:
            if run.workers >= run.job.replicas_max or not self._may_resize(run):
                continue
            gain = run.job.scaling(run.workers + 1) / run.job.scaling(run.workers)
            run.advance(self._engine.now_s)
            saved_s = run.left_s / run.speed * (1.0 - 1.0 / gain)
            if gain < model.gain or saved_s <= 2 * model.restart_s:
                continue
            one = replace(run.job.request, replicas=1)
            plan = self._policy.placer.place([one], self._cluster.snapshot)
            if plan.placements:
                (place,) = plan.placements[0].replicas
                self._change_size(run, (*run.replicas, replace(place, rank=run.workers)))

    def _change_size(self, run: Run, replicas: tuple[ReplicaPlacement, ...]) -> None:
        """Let a run go on with the workers it keeps and the ones it gains, after a restart."""
        now_s = self._engine.now_s
        before, kept = run.replicas, min(len(replicas), run.workers)
        request = run.job.request
        run.advance(now_s)
        self._close_span(run)
        self._cluster.release(request, before[kept:])
        self._cluster.claim(request, replicas[kept:])
        self._tenants.remove(run, run.cards)
        beside = self._tenants.beside(run.cards)
        run.replicas = replicas
        run.span_s = run.resized_s = now_s
        self._tenants.add(run, run.cards)
        self._views[run.job.key] = run.as_running()
        self._stories[run.job.key].hosts = _hosts_of(replicas)
        run.left_s += self._options.elasticity.restart_s * self._tenants.speed(run)
        run.version += 1
        run.speed = 0.0
        beside.update(self._tenants.beside(run.cards))
        for one in {run.job.key: run, **beside}.values():
            self._foretell(one)
        self._measure({replica.host for replica in (*before, *replicas)})
        self._resizes += 1
        self._dirty = True
        self._engine.schedule(now_s + self._options.elasticity.pause_s, _Wake())


def _hosts_of(replicas: tuple[ReplicaPlacement, ...]) -> tuple[str, ...]:
    return tuple(sorted({replica.host for replica in replicas}))


def _refuse(workload: Workload) -> None:
    seen: set[str] = set()
    for job in workload.jobs:
        if job.key in seen:
            raise BadProblemError(f"job {job.key} comes twice")
        seen.add(job.key)
        if not (job.duration_s >= 0 and job.submitted_s >= 0 and job.request.replicas >= 1):
            raise BadProblemError(f"job {job.key} has a negative time or no worker")
