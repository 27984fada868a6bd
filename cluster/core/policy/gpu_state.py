"""What a GPU may be used for, from what was read of it: health with reasons, and with hysteresis.

Missing data is never a fault of the GPU and ends no job: it makes a GPU stale, which keeps new work
away. A fault that only a person or a restart mends stays until then.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from cluster.core.resources import GpuHealth, GpuReading, Reading

#: Worst last.
SEVERITY: Final = (
    GpuHealth.OK,
    GpuHealth.DEGRADED,
    GpuHealth.DRAINING,
    GpuHealth.STALE,
    GpuHealth.QUARANTINED,
)
#: XID errors that a program causes, not the GPU: by NVIDIA's own plugin for containers.
APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
XID_WORDS: Final[Mapping[int, str]] = {
    13: "a program's kernel failed",
    31: "a program used memory that is not its own",
    43: "a program was stopped by the GPU",
    45: "a program's work was removed",
    48: "a memory error that cannot be corrected",
    63: "memory rows must be replaced",
    64: "memory rows could not be replaced",
    68: "a video decoder failed",
    74: "an NVLink failed",
    79: "the GPU has fallen off the bus",
    92: "many memory errors that were corrected",
    94: "a memory error that hit one program",
    95: "a memory error that hit several programs",
    109: "a program could not be switched away",
    119: "the GPU's own processor does not answer",
    120: "the GPU's own processor failed",
}
_HW_SLOWDOWN, _HW_THERMAL, _POWER_BRAKE, _SW_THERMAL = 0x8, 0x40, 0x80, 0x20
#: A GPU without programs may still hold so much for its driver.
IDLE_MIB: Final = 1024
_HARDWARE_THROTTLE = _HW_SLOWDOWN | _HW_THERMAL | _POWER_BRAKE


class Fault(StrEnum):
    """What may be wrong with a GPU; the word is shown by pages and the API."""

    LOST = "lost"
    MISSING = "missing"
    XID = "xid"
    ECC = "ecc"
    REMAP_FAILED = "remap_failed"
    SILENT = "silent"
    RELEASED = "released"
    REMAP_PENDING = "remap_pending"
    MISMATCH = "mismatch"
    THROTTLED = "throttled"
    FOREIGN = "foreign"
    DIVIDED = "divided"
    HOT = "hot"
    ECC_BEFORE = "ecc_before"
    PROGRAM_XIDS = "program_xids"
    GHOST = "ghost"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a fault makes of a GPU, in words, and what to do about it."""

    health: GpuHealth
    words: str
    advice: str
    sticky: bool = False


_RESET = (
    "Let it become empty, reset it ('nvidia-smi --gpu-reset -i INDEX' while the probe has let the "
    "driver go, or restart the host), then put it back."
)
FAULTS: Final[Mapping[Fault, Verdict]] = {
    Fault.LOST: Verdict(
        GpuHealth.QUARANTINED,
        "the driver has lost this GPU",
        "Look for 'Xid' in the host's kernel log. A restart of the host brings most back; one that "
        "is lost again needs its seat, its power or itself replaced.",
        sticky=True,
    ),
    Fault.MISSING: Verdict(
        GpuHealth.QUARANTINED,
        "the driver no longer lists this GPU",
        "Compare 'nvidia-smi -L' with 'lspci -d 10de:' on the host. If it was taken out for good, "
        "switch it off here; else restart the host.",
        sticky=True,
    ),
    Fault.XID: Verdict(
        GpuHealth.QUARANTINED, "the driver reported a fault of the GPU", _RESET, sticky=True
    ),
    Fault.ECC: Verdict(
        GpuHealth.QUARANTINED, "memory errors that cannot be corrected", _RESET, sticky=True
    ),
    Fault.REMAP_FAILED: Verdict(
        GpuHealth.QUARANTINED,
        "broken memory rows can no longer be replaced",
        "The maker replaces such a GPU: send it back, or switch it off here.",
        sticky=True,
    ),
    Fault.SILENT: Verdict(
        GpuHealth.STALE,
        "nothing is known of it at present",
        "Jobs that run on it go on. If it lasts, look at the host: its load, its kernel log, and "
        "whether 'nvidia-smi' answers.",
    ),
    Fault.RELEASED: Verdict(
        GpuHealth.STALE,
        "the probe has let the driver go for maintenance",
        "Send the probe SIGUSR2, or remove its container, when the maintenance is over.",
    ),
    Fault.REMAP_PENDING: Verdict(
        GpuHealth.DRAINING, "memory rows wait for a reset to be replaced", _RESET
    ),
    Fault.MISMATCH: Verdict(
        GpuHealth.DRAINING,
        "the host's driver was updated under the running one",
        "Jobs that run go on. Drain the host and restart it.",
    ),
    Fault.THROTTLED: Verdict(
        GpuHealth.DRAINING,
        "the hardware slows it down",
        "Look at its power cables, its cooling and the power supply. It takes work again five "
        "minutes after the slowing ends.",
    ),
    Fault.FOREIGN: Verdict(
        GpuHealth.DRAINING,
        "used by a program that is not a job",
        "Ask whoever runs it to submit a job, or switch the GPU off here. It takes work again when "
        "the program has ended.",
    ),
    Fault.DIVIDED: Verdict(
        GpuHealth.DRAINING,
        "divided into MIG slices; jobs get the slices",
        "Nothing: this is how it was set up.",
    ),
    Fault.HOT: Verdict(
        GpuHealth.DEGRADED,
        "close to the heat at which it slows down",
        "Look at the room's and the host's cooling. Work goes to cooler GPUs first.",
    ),
    Fault.ECC_BEFORE: Verdict(
        GpuHealth.DEGRADED,
        "it had memory errors before the portal watched it",
        "Restart the host at the next occasion and see whether they come back.",
    ),
    Fault.PROGRAM_XIDS: Verdict(
        GpuHealth.DEGRADED,
        "programs of several jobs failed on it in the same way",
        "Run the host's benchmark on it; if its siblings do not fail so, reset it.",
    ),
    Fault.GHOST: Verdict(
        GpuHealth.OK,
        "it says that it is busy, and no program uses it",
        "Some drivers say so after a program was killed; a reset ends it. It takes work.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """When a reading is a fault, and when it no longer is.

    Attributes:
        gone_readings: A GPU that so many readings in a row do not reach is lost or missing.
        calm_readings: So many readings without it end a fault that ends by itself.
        throttle_votes, throttle_of: The hardware slows a GPU down when so many of so many say so.
        throttle_clear: How long the slowing must have ended.
        hot_margin_c, cool_margin_c: Degrees below the slowdown temperature at which a GPU is hot,
            and is no longer.
        program_jobs, program_window: The same program error from so many jobs within this time.
        stranger_readings: So many readings make a container that nobody knows a stranger: one of
            ours may be seen before its start is written down.
        ghost_readings, ghost_pct, idle_mib: A GPU that is so busy for so long and holds no more
            than this is busy for nobody.
    """

    gone_readings: int = 2
    calm_readings: int = 3
    throttle_votes: int = 3
    throttle_of: int = 5
    throttle_clear: timedelta = timedelta(minutes=5)
    hot_margin_c: float = 5.0
    cool_margin_c: float = 8.0
    program_jobs: int = 3
    program_window: timedelta = timedelta(hours=24)
    stranger_readings: int = 3
    ghost_readings: int = 10
    ghost_pct: float = 50.0
    idle_mib: int = IDLE_MIB


_DEFAULT: Final = HealthSettings()
_FAR_C: Final = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong with a GPU now, with its own words."""

    fault: Fault
    text: str

    @property
    def health(self) -> GpuHealth:
        """Return what it makes of the GPU."""
        return FAULTS[self.fault].health

    @property
    def advice(self) -> str:
        """Return what to do about it."""
        return FAULTS[self.fault].advice


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthMemory:
    """What must be remembered of a GPU from one reading to the next; made of JSON values.

    Attributes:
        held: The faults that hold, with the words that they were found with.
        calm: For a fault that ends by itself: readings in a row without it.
        boot: Of the machine, when the newest sticky fault was seen.
        clean: Whole readings in a row since the machine was started again.
        throttle: The last votes, newest last.
        throttle_ended: When the hardware was last seen to stop slowing it down.
        ecc: Uncorrected errors already counted, and ``ecc_boot`` since which start.
        xid_at: Moment of the newest XID error already judged.
        programs: Program errors: moment, number, and the container that was there.
        gone, strangers, busy: Readings in a row in which it could not be reached, had an unknown
            container, was busy for nobody.
        known: Whether it was ever read.
    """

    held: Mapping[str, str] = field(default_factory=dict)
    calm: Mapping[str, int] = field(default_factory=dict)
    boot: str = ""
    clean: int = 0
    throttle: tuple[int, ...] = ()
    throttle_ended: float | None = None
    ecc: int | None = None
    ecc_boot: str = ""
    xid_at: float = 0.0
    programs: tuple[tuple[float, int, str], ...] = ()
    gone: int = 0
    strangers: int = 0
    busy: int = 0
    known: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one report of a host says, or does not say, of one GPU.

    Attributes:
        reading: ``None`` where the report does not mention it.
        trouble: The driver's trouble as a whole in one word, and in words.
        boot: Changes with every start of the machine.
        containers: Those that run jobs of this portal.
    """

    at: datetime
    reading: GpuReading | None
    trouble: str = ""
    trouble_text: str = ""
    boot: str = ""
    containers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What a GPU may be used for, why, and what to remember."""

    health: GpuHealth
    findings: tuple[Finding, ...]
    memory: HealthMemory

    @property
    def text(self) -> str:
        """Return why, the worst first; empty where nothing is wrong."""
        return "; ".join(finding.text for finding in self.findings)

    @property
    def advice(self) -> str:
        """Return what to do about the worst."""
        return self.findings[0].advice if self.findings else ""


def classify(
    memory: HealthMemory, observation: Observation, settings: HealthSettings | None = None
) -> Health:
    """Judge a GPU by one more observation."""
    rules = settings or _DEFAULT
    if is_unremarkable(memory, observation, rules):
        return Health(health=GpuHealth.OK, findings=(), memory=memory)
    seen, memory = _faults_of(memory, observation, rules)
    memory = _hold(memory, seen, observation, rules)
    findings = tuple(Finding(fault=fault, text=text) for fault, text in held_faults(memory))
    health = findings[0].health if findings else GpuHealth.OK
    return Health(health=health, findings=findings, memory=memory)


def is_unremarkable(
    memory: HealthMemory, observation: Observation, rules: HealthSettings = _DEFAULT
) -> bool:
    """Return whether nothing was wrong and nothing is: then there is nothing to work out.

    Nearly every observation is like that, and a large cluster makes thousands a second.
    """
    reading = observation.reading
    if reading is None or observation.trouble or not memory.known:
        return False
    remembered = (memory.held, memory.gone, memory.strangers, memory.busy, memory.programs)
    told = (reading.xids, reading.divided, reading.remap_pending, reading.remap_failed)
    if any(remembered) or any(told) or any(memory.throttle) or reading.ecc_uncorrected:
        return False
    slowed = (reading.throttle_mask or 0) & (_HARDWARE_THROTTLE | _SW_THERMAL)
    near_c = (reading.slowdown_c or _FAR_C) - rules.cool_margin_c
    busy = (reading.utilization_pct or 0) >= rules.ghost_pct
    return (
        not slowed
        and (reading.temperature_c or 0) < near_c
        and reading.processes.keys() <= observation.containers
        and is_fresh(reading)
        and not (busy and is_idle(reading))
    )


def held_faults(memory: HealthMemory) -> list[tuple[Fault, str]]:
    """Return the faults that hold, each with its words, the worst first."""
    held = [(Fault(name), text) for name, text in memory.held.items()]
    return sorted(held, key=lambda one: (-SEVERITY.index(FAULTS[one[0]].health), one[0]))


def cleared(memory: HealthMemory) -> HealthMemory:
    """Return the memory after an operator's word that the faults were mended."""
    held = {name: text for name, text in memory.held.items() if not FAULTS[Fault(name)].sticky}
    return replace(memory, held=held, boot="", clean=0, ecc=None, programs=())


def is_fresh(reading: GpuReading) -> bool:
    """Return whether the reading is of now: a GPU that says nothing at all was not asked."""
    return not reading.lost and Reading.STALE not in reading.why.values()


def is_idle(reading: GpuReading, *, idle_mib: int = IDLE_MIB) -> bool:
    """Return whether nothing uses the GPU; being busy says nothing, see :attr:`Fault.GHOST`."""
    used = reading.memory_used_mib
    return is_fresh(reading) and not reading.processes and used is not None and used < idle_mib


def _faults_of(
    memory: HealthMemory, observation: Observation, rules: HealthSettings
) -> tuple[dict[Fault, str], HealthMemory]:
    """Return the faults that this observation shows, with their words."""
    reading = observation.reading
    gone = not observation.trouble and memory.known and (reading is None or reading.lost)
    memory = replace(memory, gone=memory.gone + 1 if gone else 0)
    unread = _why_unread(memory, observation, rules)
    if reading is None or unread is not None:
        fault = unread or Fault.SILENT
        words = observation.trouble_text if fault is Fault.SILENT else ""
        return {fault: words or FAULTS[fault].words}, memory
    memory = replace(memory, known=True)
    found: dict[Fault, str] = {}
    for look in (_memory_rows, _ecc, _xids, _throttle, _heat, _strangers, _ghost):
        more, memory = look(memory, observation, reading, rules)
        found |= more
    if reading.divided:
        found[Fault.DIVIDED] = FAULTS[Fault.DIVIDED].words
    return found, memory


def _why_unread(
    memory: HealthMemory, observation: Observation, rules: HealthSettings
) -> Fault | None:
    """Return what keeps the GPU from being read now; ``None`` for nothing."""
    reading = observation.reading
    if observation.trouble in _TROUBLES:
        return _TROUBLES[observation.trouble]
    # One look may fail; what fails again is gone.
    if memory.gone >= rules.gone_readings:
        return Fault.LOST if reading is not None else Fault.MISSING
    read = reading is not None and is_fresh(reading) and not observation.trouble
    return None if read else Fault.SILENT


_TROUBLES: Final = {"mismatch": Fault.MISMATCH, "released": Fault.RELEASED}
_Found = tuple[dict[Fault, str], HealthMemory]


def _memory_rows(
    memory: HealthMemory, observation: Observation, reading: GpuReading, rules: HealthSettings
) -> _Found:
    del observation, rules
    found = {}
    if reading.remap_failed:
        found[Fault.REMAP_FAILED] = FAULTS[Fault.REMAP_FAILED].words
    if reading.remap_pending:
        found[Fault.REMAP_PENDING] = FAULTS[Fault.REMAP_PENDING].words
    return found, memory


def _ecc(
    memory: HealthMemory, observation: Observation, reading: GpuReading, rules: HealthSettings
) -> _Found:
    del rules
    count = reading.ecc_uncorrected
    # A card without ECC is healthy, not unknown.
    if count is None:
        return {}, memory
    same = memory.ecc is not None and memory.ecc_boot == observation.boot
    before = (memory.ecc or 0) if same else (count if memory.ecc is None else 0)
    first = memory.ecc is None and count > 0
    memory = replace(memory, ecc=count, ecc_boot=observation.boot)
    if count > before:
        return {Fault.ECC: f"{count - before} {FAULTS[Fault.ECC].words}"}, memory
    held = Fault.ECC_BEFORE in memory.held and count > 0
    if first or held:
        return {Fault.ECC_BEFORE: FAULTS[Fault.ECC_BEFORE].words}, memory
    return {}, memory


def _xids(
    memory: HealthMemory, observation: Observation, reading: GpuReading, rules: HealthSettings
) -> _Found:
    new = [(at, code) for at, code in reading.xids if at > memory.xid_at]
    found: dict[Fault, str] = {}
    programs = list(memory.programs)
    holders = [name for name in reading.processes if name] or [""]
    for at, code in new:
        if code in APPLICATION_XIDS:
            # Charged to whoever was there: the driver does not say whose it was.
            programs += [(at, code, holder) for holder in holders]
        else:
            words = XID_WORDS.get(code, FAULTS[Fault.XID].words)
            found[Fault.XID] = f"Xid {code}: {words}"
    oldest = (observation.at - rules.program_window).timestamp()
    programs = [one for one in programs if one[0] >= oldest][-200:]
    for code in {code for _, code, _ in programs}:
        jobs = {holder for _, number, holder in programs if number == code and holder}
        if len(jobs) >= rules.program_jobs:
            found[Fault.PROGRAM_XIDS] = (
                f"Xid {code} from {len(jobs)} jobs: {XID_WORDS.get(code, 'a program failed')}"
            )
    newest = max((at for at, _ in new), default=memory.xid_at)
    return found, replace(memory, xid_at=newest, programs=tuple(programs))


def _throttle(
    memory: HealthMemory, observation: Observation, reading: GpuReading, rules: HealthSettings
) -> _Found:
    mask = reading.throttle_mask
    if mask is None:
        return {}, memory
    vote = int(bool(mask & _HARDWARE_THROTTLE))
    votes = (*memory.throttle, vote)[-rules.throttle_of :]
    now = observation.at.timestamp()
    slowed = sum(votes) >= rules.throttle_votes
    ended = memory.throttle_ended
    if vote or slowed:
        ended = None
    elif ended is None:
        ended = now
    memory = replace(memory, throttle=votes, throttle_ended=ended)
    waiting = Fault.THROTTLED in memory.held and (
        ended is None or now - ended < rules.throttle_clear.total_seconds()
    )
    if not slowed and not waiting:
        return {}, memory
    names = [
        name for bit, name in ((_HW_THERMAL, "heat"), (_POWER_BRAKE, "a power brake")) if mask & bit
    ]
    because = f", because of {' and '.join(names)}" if names else ""
    text = f"{FAULTS[Fault.THROTTLED].words}{because}"
    return {Fault.THROTTLED: text if slowed else memory.held[Fault.THROTTLED]}, memory


def _heat(
    memory: HealthMemory, observation: Observation, reading: GpuReading, rules: HealthSettings
) -> _Found:
    del observation
    hot = bool((reading.throttle_mask or 0) & _SW_THERMAL)
    if reading.temperature_c is not None and reading.slowdown_c:
        was = Fault.HOT in memory.held
        margin = rules.cool_margin_c if was else rules.hot_margin_c
        hot = hot or reading.temperature_c >= reading.slowdown_c - margin
    return ({Fault.HOT: FAULTS[Fault.HOT].words} if hot else {}), memory


def _strangers(
    memory: HealthMemory, observation: Observation, reading: GpuReading, rules: HealthSettings
) -> _Found:
    unknown = [name for name in reading.processes if name and name not in observation.containers]
    memory = replace(memory, strangers=memory.strangers + 1 if unknown else 0)
    words = FAULTS[Fault.FOREIGN].words
    if "" in reading.processes:
        named = f": {', '.join(reading.strangers)}" if reading.strangers else ""
        return {Fault.FOREIGN: words + named}, memory
    if memory.strangers >= rules.stranger_readings:
        return {Fault.FOREIGN: f"{words}: container {unknown[0][:12]}"}, memory
    return {}, memory


def _ghost(
    memory: HealthMemory, observation: Observation, reading: GpuReading, rules: HealthSettings
) -> _Found:
    del observation
    busy = (reading.utilization_pct or 0) >= rules.ghost_pct
    ghost = busy and is_idle(reading, idle_mib=rules.idle_mib)
    memory = replace(memory, busy=min(memory.busy + 1, 10**6) if ghost else 0)
    if memory.busy < rules.ghost_readings:
        return {}, memory
    return {Fault.GHOST: FAULTS[Fault.GHOST].words}, memory


def _hold(
    memory: HealthMemory,
    seen: Mapping[Fault, str],
    observation: Observation,
    rules: HealthSettings,
) -> HealthMemory:
    """Return the memory with what holds now: what is seen, what must be mended, what lingers."""
    reading = observation.reading
    looked = reading is not None and is_fresh(reading) and not observation.trouble
    memory = _restarted(memory, observation, looked=looked, rules=rules)
    held: dict[str, str] = {}
    calm: dict[str, int] = {}
    for name, text in memory.held.items():
        fault = Fault(name)
        quiet = memory.calm.get(name, 0) + int(looked or fault in _ABOUT_LOOKING)
        # One reason why nothing could be read replaces another.
        if fault in seen or (fault in _ABOUT_LOOKING and seen.keys() & _UNREAD):
            continue
        if FAULTS[fault].sticky or quiet < _calm_needed(fault, rules):
            held[name], calm[name] = text, quiet
    for fault, text in seen.items():
        held[fault.value] = text
    sticky = any(FAULTS[Fault(name)].sticky for name in held)
    # A start before the newest fault mends nothing of it.
    seen_now = any(FAULTS[fault].sticky for fault in seen)
    boot = (observation.boot or memory.boot) if seen_now else memory.boot
    boot = boot if sticky else ""
    return replace(memory, held=held, calm=calm, boot=boot)


#: Faults of the looking itself: another one of them, or a good look, ends them.
_ABOUT_LOOKING: Final = frozenset({Fault.SILENT, Fault.RELEASED, Fault.MISMATCH})

_UNREAD: Final = _ABOUT_LOOKING | {Fault.LOST, Fault.MISSING}


def _calm_needed(fault: Fault, rules: HealthSettings) -> int:
    # A margin, votes or a window of its own already keep these from flapping.
    if fault in {Fault.HOT, Fault.THROTTLED, Fault.PROGRAM_XIDS, Fault.GHOST, Fault.DIVIDED}:
        return 1
    return 2 if fault in _ABOUT_LOOKING else rules.calm_readings


def _restarted(
    memory: HealthMemory, observation: Observation, *, looked: bool, rules: HealthSettings
) -> HealthMemory:
    """Let go what needed a restart, once the machine was started again and reads well."""
    sticky = [name for name in memory.held if FAULTS[Fault(name)].sticky]
    if not sticky or not observation.boot or observation.boot == memory.boot:
        return replace(memory, clean=0)
    clean = memory.clean + 1 if looked else 0
    if clean < rules.calm_readings:
        return replace(memory, clean=clean)
    return replace(cleared(memory), ecc=memory.ecc, ecc_boot=memory.ecc_boot)


_FRESH: Final = HealthMemory()


def memory_to_json(memory: HealthMemory) -> dict[str, Any]:
    """Return the memory as JSON values; what is as at the beginning is left out."""
    fresh = _FRESH
    names = HealthMemory.__dataclass_fields__
    values = {name: getattr(memory, name) for name in names}
    changed = {name: value for name, value in values.items() if value != getattr(fresh, name)}
    # As it comes back from a database, so that the two compare.
    for name in ("throttle", "programs"):
        if name in changed:
            changed[name] = [list(one) if isinstance(one, tuple) else one for one in changed[name]]
    return changed


def memory_from_json(found: Mapping[str, Any]) -> HealthMemory:
    """Return the memory that :func:`memory_to_json` wrote; what it does not know is left out.

    A fault that this version does not know is forgotten.
    """
    names = HealthMemory.__dataclass_fields__
    values = {name: value for name, value in found.items() if name in names}
    values["held"] = {
        name: text for name, text in values.get("held", {}).items() if name in set(Fault)
    }
    values["throttle"] = tuple(values.get("throttle", ()))
    values["programs"] = tuple(
        (float(at), int(code), str(holder)) for at, code, holder in values.get("programs", ())
    )
    return HealthMemory(**values)
