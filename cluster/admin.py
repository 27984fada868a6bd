"""Admin pages of hosts and GPUs: how they are now, and what may be done about it."""

from typing import Any, Final

from django import forms
from django.contrib import admin, messages
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.timesince import timesince
from django.utils.timezone import localtime

from cluster import health, selectors, services
from cluster.core.resources import GpuHealth
from cluster.errors import ClusterError, HostInUseError
from cluster.models import Gpu, Host, HostConnection, HostMode, PlacementWeights, capacity

_TONES: Final[dict[str, str]] = {
    HostConnection.UP: "good",
    HostConnection.NEW: "note",
    HostConnection.UNREACHABLE: "bad",
    HostConnection.REFUSED: "bad",
    HostMode.ACTIVE: "good",
    HostMode.CORDONED: "note",
    HostMode.DRAINING: "note",
    GpuHealth.OK: "good",
    GpuHealth.DEGRADED: "note",
    GpuHealth.STALE: "note",
    GpuHealth.QUARANTINED: "bad",
}


def badge(text: str, tone: str = "note") -> str:
    """Return a word on a coloured ground; the word alone says it too."""
    return format_html('<span class="badge badge--{}">{}</span>', tone, text)


class ReadOnlyAdmin(admin.ModelAdmin):
    """Rows that the platform writes: to be looked at."""

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002 - Django's signature
        """Nobody adds by hand what the platform makes."""
        return False

    def has_change_permission(
        self,
        request: HttpRequest,  # noqa: ARG002 - Django's signature
        obj: Any = None,  # noqa: ARG002 - Django's signature
    ) -> bool:
        """Nobody changes by hand what the platform writes."""
        return False

    def has_delete_permission(
        self,
        request: HttpRequest,  # noqa: ARG002 - Django's signature
        obj: Any = None,  # noqa: ARG002 - Django's signature
    ) -> bool:
        """Nobody deletes by hand what the platform still counts on."""
        return False


class HostForm(forms.ModelForm):
    """A host as an admin writes it down."""

    class Meta:
        model = Host
        fields = [
            "name",
            "url",
            "tls_ca",
            "tls_cert",
            "tls_key",
            "shares_files",
            "mode",
            "cpu_millis",
            "memory_mib",
        ]

    def clean(self) -> dict[str, Any]:
        """Refuse an endpoint that cannot be one, with what to write instead."""
        values: dict[str, Any] = super().clean() or {}
        if "url" in values:
            names = ("name", "url", "tls_ca", "tls_cert", "tls_key")
            problem = services.endpoint_problem(Host(**{n: values.get(n, "") for n in names}))
            if problem:
                self.add_error("url", problem)
        return values


@admin.register(Host)
class HostAdmin(admin.ModelAdmin):
    form = HostForm
    list_display = [
        "name",
        "state",
        "accepts",
        "containers",
        "gpu_count",
        "for_jobs",
        "kind",
        "seen",
    ]
    list_filter = ["mode", "connection", "is_simulated"]
    search_fields = ["name", "url"]
    actions = ["test_connection", "drain", "cordon", "activate"]
    readonly_fields = ["state", "engine_says", "containers", "seen"]
    fieldsets = [
        (None, {"fields": ["name", "url", "mode", "shares_files"]}),
        (
            "TLS, for tcp:// endpoints",
            {
                "fields": ["tls_ca", "tls_cert", "tls_key"],
                "description": "Paths of PEM files on the portal's machine; all three or none.",
            },
        ),
        (
            "What jobs may have",
            {
                "fields": ["cpu_millis", "memory_mib"],
                "description": "0 leaves it to the engine, with some memory kept for the host.",
            },
        ),
        ("Now", {"fields": ["state", "engine_says", "containers", "seen"]}),
    ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Host]:  # noqa: ARG002 - Django's signature
        """Return the hosts with what they carry."""
        return selectors.host_list().order_by("name")

    def get_actions(self, request: HttpRequest) -> Any:
        """Offer the safe removal under its own name."""
        actions = super().get_actions(request)
        removal = actions.get("delete_selected")
        if removal is not None:
            function, name, _ = removal
            actions["delete_selected"] = (function, name, "Remove the chosen hosts")
        return actions

    @admin.display(description="connection", ordering="connection")
    def state(self, host: Host) -> str:
        """Say whether it answers, and since when."""
        label = badge(HostConnection(host.connection).label, _TONES[host.connection])
        return format_html("{} {}", label, host.connection_text)

    @admin.display(description="takes work", ordering="mode")
    def accepts(self, host: Host) -> str:
        """Say whether new containers are placed there, and why not."""
        why = selectors.why_unschedulable(host)
        return badge("yes", "good") if not why else format_html("{} {}", badge("no"), why)

    @admin.display(description="containers", ordering="holders")
    def containers(self, host: Host) -> int:
        """Return how many claims it carries."""
        return int(getattr(host, "holders", 0))

    @admin.display(description="GPUs")
    def gpu_count(self, host: Host) -> int:
        """Return how many GPUs were reported."""
        return len(host.gpus.all())

    @admin.display(description="for jobs")
    def for_jobs(self, host: Host) -> str:
        """Return what jobs may have of it."""
        cpu_millis, memory_mib = capacity(host)
        return f"{cpu_millis / 1000:g} cores, {memory_mib / 1024:.1f} GiB"

    @admin.display(description="engine")
    def kind(self, host: Host) -> str:
        """Return what runs the containers there."""
        engine: dict[str, Any] = host.engine or {}
        return f"{engine.get('kind', '-')} {engine.get('version', '')}".strip()

    @admin.display(description="last reading", ordering="probed_at")
    def seen(self, host: Host) -> str:
        """Return how long ago its probe was heard."""
        return f"{timesince(host.probed_at)} ago" if host.probed_at else "never"

    @admin.display(description="engine")
    def engine_says(self, host: Host) -> str:
        """Return what the last connection test found."""
        engine: dict[str, Any] = host.engine or {}
        if not engine:
            return "not tested yet"
        return format_html(
            "{} {} on {}, {} cores, {} MiB. {}",
            engine["kind"],
            engine["version"],
            engine["operating_system"],
            engine["cpu_millis"] / 1000,
            engine["memory_mib"],
            " ".join(engine.get("warnings", [])),
        )

    def save_model(self, request: HttpRequest, obj: Host, form: Any, change: bool) -> None:  # noqa: FBT001 - Django's signature
        """Store the host, and test its connection when that is new."""
        super().save_model(request, obj, form, change)
        if not change or {"url", "tls_ca", "tls_cert", "tls_key"} & set(form.changed_data):
            # The engine may take its time; nobody may hold the database meanwhile.
            transaction.on_commit(lambda: self._test(request, obj))

    def _test(self, request: HttpRequest, host: Host) -> None:
        try:
            engine = services.host_test(host_id=host.pk, now=timezone.now())
        except ClusterError as error:
            self.message_user(request, f"{error}.", messages.ERROR)
            return
        self.message_user(
            request, f"{host.name} answers: {engine.kind} {engine.version}.", messages.SUCCESS
        )
        for warning in engine.warnings:
            self.message_user(request, f"{host.name}: {warning}", messages.WARNING)

    @admin.action(description="Test the connection", permissions=["change"])
    def test_connection(self, request: HttpRequest, queryset: QuerySet[Host]) -> None:
        """Ask each engine what it is."""
        for host in queryset:
            self._test(request, host)

    @admin.action(description="Drain: takes nothing new and gets empty", permissions=["change"])
    def drain(self, request: HttpRequest, queryset: QuerySet[Host]) -> None:
        """Let the hosts become empty."""
        self._set_mode(request, queryset, HostMode.DRAINING)

    @admin.action(description="Cordon: keeps its work, takes nothing new", permissions=["change"])
    def cordon(self, request: HttpRequest, queryset: QuerySet[Host]) -> None:
        """Keep new work off the hosts."""
        self._set_mode(request, queryset, HostMode.CORDONED)

    @admin.action(description="Activate: takes work again", permissions=["change"])
    def activate(self, request: HttpRequest, queryset: QuerySet[Host]) -> None:
        """Let the hosts take work."""
        self._set_mode(request, queryset, HostMode.ACTIVE)

    def _set_mode(self, request: HttpRequest, hosts: QuerySet[Host], mode: HostMode) -> None:
        for host in hosts:
            services.host_set_mode(host_id=host.pk, mode=mode)
            self.message_user(request, f"{host.name} is {mode.value} now.", messages.SUCCESS)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:  # noqa: ARG002 - Django's signature
        """Say what a removal does; what still carries something is protected."""
        hosts = list(objs)
        named = [
            f"Host {host.name}, its {len(host.gpus.all())} GPU(s) and samples" for host in hosts
        ]
        protected = [
            f"{host.name} still carries {self.containers(host)} container(s): drain it first"
            for host in hosts
            if self.containers(host)
        ]
        return named, {"hosts": len(hosts)}, set(), protected

    def delete_model(self, request: HttpRequest, obj: Host) -> None:
        """Remove a host if it is empty now."""
        self._remove(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Host]) -> None:
        """Remove each host that is empty now."""
        for host in queryset:
            self._remove(request, host)

    def _remove(self, request: HttpRequest, host: Host) -> None:
        try:
            services.host_remove(host_id=host.pk)
        except HostInUseError as error:
            self.message_user(request, f"{error}.", messages.ERROR)


@admin.register(Gpu)
class GpuAdmin(admin.ModelAdmin):
    list_display = [
        "uuid",
        "host",
        "model",
        "state",
        "is_enabled",
        "memory",
        "utilisation",
        "reported_at",
    ]
    list_filter = ["is_enabled", "health", "host", "is_simulated"]
    list_select_related = ["host"]
    search_fields = ["uuid", "model", "host__name"]
    actions = ["switch_on", "switch_off", "put_back"]
    fields = (
        "uuid",
        "host",
        "model",
        "index",
        "parent_uuid",
        "memory",
        "state",
        "what_to_do",
        "is_enabled",
        "reported_at",
        "history",
    )
    readonly_fields = (
        "uuid",
        "host",
        "model",
        "index",
        "parent_uuid",
        "memory",
        "state",
        "what_to_do",
        "reported_at",
        "history",
    )

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002 - Django's signature
        """GPUs are found by the probe, never written by hand."""
        return False

    def has_delete_permission(
        self,
        request: HttpRequest,  # noqa: ARG002 - Django's signature
        obj: Gpu | None = None,  # noqa: ARG002 - Django's signature
    ) -> bool:
        """A GPU that is there would only come back; one that is gone goes with its host."""
        return False

    @admin.display(description="health", ordering="health")
    def state(self, gpu: Gpu) -> str:
        """Say what it may be used for now, and why."""
        health, why = selectors.gpu_health(gpu, now=timezone.now())
        return format_html("{} {}", badge(health.value, _TONES.get(health, "note")), why)

    @admin.display(description="what to do")
    def what_to_do(self, gpu: Gpu) -> str:
        """Return each thing that is wrong with it, and what to do about it."""
        findings = selectors.gpu_findings(gpu, now=timezone.now())
        lines = [(one["text"], one["advice"]) for one in findings]
        return format_html_join("", "<p><strong>{}</strong><br>{}</p>", lines) or "nothing"

    @admin.display(description="health so far")
    def history(self, gpu: Gpu) -> str:
        """Return the last changes of its health, newest first."""
        events = [
            (date_format(localtime(event.at), "DATETIME_FORMAT"), event.health, event.text)
            for event in selectors.gpu_events(gpu, limit=20)
        ]
        return format_html_join("", "<p>{}: <strong>{}</strong> {}</p>", events) or "none"

    @admin.display(description="memory")
    def memory(self, gpu: Gpu) -> str:
        """Return how much memory it has, and how much was used."""
        used = gpu.last_reading.get("memory_used_mib")
        known = "" if used is None else f"{used:.0f} of "
        return f"{known}{gpu.memory_total_mib} MiB"

    @admin.display(description="utilisation")
    def utilisation(self, gpu: Gpu) -> str:
        """Return the last reading; a dash where the device cannot say."""
        value = gpu.last_reading.get("utilization_pct")
        return "-" if value is None else f"{value:.0f} %"

    @admin.action(description="Switch on: jobs may have it", permissions=["change"])
    def switch_on(self, request: HttpRequest, queryset: QuerySet[Gpu]) -> None:
        """Let new jobs have the GPUs."""
        self._switch(request, queryset, is_enabled=True)

    @admin.action(description="Switch off: keeps new jobs away", permissions=["change"])
    def switch_off(self, request: HttpRequest, queryset: QuerySet[Gpu]) -> None:
        """Keep new jobs off the GPUs."""
        self._switch(request, queryset, is_enabled=False)

    @admin.action(description="Put back: its faults were mended", permissions=["change"])
    def put_back(self, request: HttpRequest, queryset: QuerySet[Gpu]) -> None:
        """Clear what only a restart or a person can end."""
        for gpu in queryset:
            health.gpu_clear(gpu_id=gpu.pk, now=timezone.now())
        text = f"{len(queryset)} GPU(s) put back; a fault that is still there returns at once."
        self.message_user(request, text, messages.SUCCESS)

    def _switch(self, request: HttpRequest, gpus: QuerySet[Gpu], *, is_enabled: bool) -> None:
        for gpu in gpus:
            services.gpu_set_enabled(gpu_id=gpu.pk, is_enabled=is_enabled)
        words = "on" if is_enabled else "off"
        self.message_user(request, f"{len(gpus)} GPU(s) switched {words}.", messages.SUCCESS)


@admin.register(PlacementWeights)
class PlacementWeightsAdmin(ReadOnlyAdmin):
    """Weights of the online score: which were tuned, on what, and which are used."""

    list_display = ("name", "is_active", "score", "created_at")
    list_filter = ("is_active",)
    search_fields = ("name",)
    actions = ("use", "use_default")

    def has_delete_permission(
        self,
        request: HttpRequest,
        obj: Any = None,
    ) -> bool:
        """Weights that are not used may go."""
        return admin.ModelAdmin.has_delete_permission(self, request, obj)

    @admin.action(description="Use these from now on", permissions=["delete"])
    def use(self, request: HttpRequest, queryset: QuerySet[PlacementWeights]) -> None:
        """Make one row the active one."""
        rows = list(queryset[:2])
        if len(rows) != 1:
            self.message_user(request, "Choose one row.", messages.ERROR)
            return
        services.placement_weights_activate(weights_id=rows[0].pk)
        self.message_user(request, f"{rows[0].name} is used from now on.", messages.SUCCESS)

    @admin.action(description="Use those of the product", permissions=["delete"])
    def use_default(
        self,
        request: HttpRequest,
        queryset: QuerySet[PlacementWeights],  # noqa: ARG002 - Django's signature
    ) -> None:
        """Make no row the active one."""
        services.placement_weights_deactivate()
        self.message_user(request, "The product's weights are used from now on.", messages.SUCCESS)
