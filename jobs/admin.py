"""Admin pages of environments, templates, jobs and datasets."""

from typing import Any, Final

from django.contrib import admin, messages
from django.db.models import Count, QuerySet, Sum
from django.forms import CheckboxSelectMultiple
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.utils import timezone
from django.utils.html import format_html

from cluster.admin import ReadOnlyAdmin, badge
from jobs import services
from jobs.errors import JobsError
from jobs.lifecycle import VERDICTS, JobStatus, Reason
from jobs.models import Dataset, Environment, Job, JobEvent, JobTemplate

_TONES: Final[dict[str, str]] = {
    JobStatus.SUCCEEDED: "good",
    JobStatus.RUNNING: "good",
    JobStatus.FAILED: "bad",
}


@admin.register(Environment)
class EnvironmentAdmin(admin.ModelAdmin):
    list_display = [
        "name",
        "slug",
        "framework",
        "image",
        "python",
        "is_enabled",
        "staff_only",
        "uses_gpus",
        "position",
    ]
    list_editable = ["is_enabled", "staff_only", "position"]
    list_filter = ["is_enabled", "staff_only", "framework"]
    search_fields = ["name", "slug", "image"]
    prepopulated_fields = {"slug": ["name"]}
    fieldsets = [
        (None, {"fields": ["name", "slug", "description", "framework", "position"]}),
        (
            "Where the software is",
            {
                "fields": ["image", "python"],
                "description": (
                    "An image for hosts with a container engine, an interpreter for process "
                    "hosts; a host without its kind cannot run jobs in this environment."
                ),
            },
        ),
        ("Who and where", {"fields": ["is_enabled", "staff_only", "uses_gpus", "hosts"]}),
    ]

    def formfield_for_manytomany(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Offer the hosts as boxes to tick: there are few, and it works without a mouse."""
        return super().formfield_for_manytomany(
            db_field, request, widget=CheckboxSelectMultiple, **kwargs
        )


@admin.register(JobTemplate)
class JobTemplateAdmin(admin.ModelAdmin):
    list_display = ["title", "slug", "environment", "gpus", "is_enabled", "position"]
    list_editable = ["is_enabled", "position"]
    list_filter = ["is_enabled", "environment"]
    list_select_related = ["environment"]
    search_fields = ["title", "slug", "description"]
    prepopulated_fields = {"slug": ["title"]}


class EventInline(admin.TabularInline):
    """What happened to the job, in order."""

    model = JobEvent
    fields = ["at", "source", "target", "code", "text", "actor"]
    readonly_fields = ["at", "source", "target", "code", "text", "actor"]
    extra = 0
    can_delete = False
    verbose_name_plural = "history"

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 - Django's signature
        """History is written by what happens."""
        return False


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    list_display = [
        "name",
        "owner",
        "state",
        "why",
        "environment",
        "gpus",
        "submitted_at",
        "finished_at",
    ]
    list_filter = ["status", "reason", "environment", "submitted_at"]
    list_select_related = ["owner", "environment"]
    search_fields = ["name", "owner__username", "public_id"]
    date_hierarchy = "submitted_at"
    # Django's own count of all rows on every page is slow once there are many.
    show_full_result_count = False
    actions = ["force_end"]
    inlines = [EventInline]
    fields = [
        "public_id",
        "name",
        "owner",
        "state",
        "why",
        "environment",
        "entrypoint",
        "arguments",
        "parameters",
        "cpu_millis",
        "memory_mib",
        "gpus",
        "walltime_s",
        "priority",
        "submitted_at",
        "started_at",
        "finished_at",
    ]

    @admin.display(description="status", ordering="status")
    def state(self, job: Job) -> str:
        """Say where it is."""
        return badge(job.status, _TONES.get(job.status, "note"))

    @admin.display(description="why")
    def why(self, job: Job) -> str:
        """Say why it ended, or why it waits."""
        if job.status == JobStatus.PENDING:
            return job.pending_text or "not looked at yet"
        words = VERDICTS[Reason(job.reason)].words if job.reason else ""
        return format_html("{} {}", words, job.reason_text)

    @admin.action(description="End the chosen jobs by force", permissions=["view"])
    def force_end(self, request: HttpRequest, queryset: QuerySet[Job]) -> None:
        """End jobs whoever owns them; their programs get the usual grace time."""
        for job in queryset:
            try:
                services.job_cancel(
                    job_id=job.public_id,
                    actor=request.user,
                    now=timezone.now(),
                    reason=Reason.FORCE_ENDED,
                )
            except JobsError as error:
                self.message_user(request, f"{job.name}: {error}", messages.WARNING)
            else:
                self.message_user(request, f"{job.name} is being ended.", messages.SUCCESS)


@admin.register(Dataset)
class DatasetAdmin(ReadOnlyAdmin):
    list_display = ["name", "owner", "version_count", "size", "is_shared", "created_at"]
    list_filter = ["is_shared", "created_at"]
    list_select_related = ["owner"]
    search_fields = ["name", "owner__username"]
    fields = ["public_id", "name", "owner", "description", "is_shared", "created_at"]
    actions = ["remove"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Dataset]:
        """Return the datasets with how much they hold."""
        rows: QuerySet[Dataset] = super().get_queryset(request)
        return rows.annotate(
            versions_held=Count("versions"), bytes_held=Sum("versions__content__size_bytes")
        )

    @admin.display(description="versions", ordering="versions_held")
    def version_count(self, dataset: Dataset) -> int:
        """Return how many versions there are."""
        return int(getattr(dataset, "versions_held", 0))

    @admin.display(description="size", ordering="bytes_held")
    def size(self, dataset: Dataset) -> str:
        """Return how large the versions are together."""
        return filesizeformat(getattr(dataset, "bytes_held", 0) or 0)

    @admin.action(description="Delete the chosen datasets with their files", permissions=["view"])
    def remove(self, request: HttpRequest, queryset: QuerySet[Dataset]) -> None:
        """Delete datasets that no job under way uses."""
        for dataset in queryset:
            try:
                services.dataset_delete(
                    dataset_id=dataset.public_id, actor=request.user, now=timezone.now()
                )
            except JobsError as error:
                self.message_user(request, f"{dataset.name}: {error}", messages.ERROR)
            else:
                self.message_user(request, f"{dataset.name} was deleted.", messages.SUCCESS)
