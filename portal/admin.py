"""Admin pages of accounts and their tokens."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.forms import UserChangeForm
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest

from cluster.admin import ReadOnlyAdmin
from jobs.lifecycle import ACTIVE
from portal import selectors
from portal.errors import LastAdminError
from portal.models import ApiToken, Role, User


class AccountForm(UserChangeForm):
    """An account as an admin changes it."""

    def clean(self) -> dict[str, Any]:
        """Keep at least one admin who can sign in."""
        values: dict[str, Any] = super().clean() or {}
        stays = values.get("role") == Role.ADMIN and values.get("is_active")
        before = User.objects.filter(pk=self.instance.pk).first()
        if before is not None and not stays and selectors.is_last_admin(before):
            raise forms.ValidationError(f"{LastAdminError()}.")
        return values


@admin.register(User)
class AccountAdmin(UserAdmin):
    form = AccountForm
    list_display = [
        "username",
        "email",
        "role",
        "is_active",
        "active_jobs",
        "storage_quota_mib",
        "max_active_jobs",
        "max_gpus",
        "last_login",
    ]
    list_filter = ["role", "is_active"]
    search_fields = ["username", "email", "first_name", "last_name"]
    filter_horizontal = ()
    readonly_fields = ["last_login", "date_joined", "use"]
    actions = ["switch_off", "switch_on"]
    fieldsets = [
        (None, {"fields": ["username", "password"]}),
        ("Person", {"fields": ["first_name", "last_name", "email"]}),
        (
            "Rights",
            {
                "fields": ["role", "is_active"],
                "description": (
                    "Students see their own work, instructors see everybody's, admins also "
                    "change everybody's and use these pages. An account that is not active is "
                    "signed out everywhere at once, and its tokens open nothing."
                ),
            },
        ),
        (
            "Quotas",
            {
                "fields": ["storage_quota_mib", "max_active_jobs", "max_gpus", "use"],
                "description": "Empty: the site's own.",
            },
        ),
        ("Dates", {"fields": ["last_login", "date_joined"]}),
    ]
    add_fieldsets = [
        (None, {"classes": ["wide"], "fields": ["username", "email", "role"]}),
        ("Password", {"fields": ["usable_password", "password1", "password2"]}),
    ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        """Return the accounts with how many jobs they have under way."""
        under_way = Q(jobs__status__in=[status.value for status in ACTIVE])
        rows: QuerySet[User] = super().get_queryset(request)
        return rows.annotate(jobs_under_way=Count("jobs", filter=under_way))

    @admin.display(description="active jobs", ordering="jobs_under_way")
    def active_jobs(self, user: User) -> int:
        """Return how many jobs are under way."""
        return int(getattr(user, "jobs_under_way", 0))

    @admin.display(description="used now")
    def use(self, user: User) -> str:
        """Return what is used of each quota."""
        use = selectors.account_use(user)
        mib = 2**20
        return (
            f"{use.storage_used_bytes / mib:,.0f} of {use.storage_limit_bytes / mib:,.0f} MiB, "
            f"{use.active_jobs} of {use.max_active_jobs} jobs"
        )

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        """Only an account that never did anything may be deleted; others are switched off.

        With an account its jobs would go, and the containers that run for them would be nobody's.
        """
        if obj is None or not super().has_delete_permission(request, obj):
            return False
        return not (obj.jobs.exists() or obj.datasets.exists() or selectors.is_last_admin(obj))

    def get_actions(self, request: HttpRequest) -> Any:
        """Offer no deletion of many accounts at once."""
        actions = super().get_actions(request)
        actions.pop("delete_selected", None)
        return actions

    @admin.action(description="Switch off: signed out everywhere", permissions=["change"])
    def switch_off(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        """Switch accounts off; the last admin stays."""
        for user in queryset:
            if selectors.is_last_admin(user):
                self.message_user(request, f"{user}: {LastAdminError()}.", messages.ERROR)
                continue
            user.is_active = False
            user.save(update_fields=["is_active"])
            self.message_user(request, f"{user} is switched off.", messages.SUCCESS)

    @admin.action(description="Switch on", permissions=["change"])
    def switch_on(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        """Switch accounts on."""
        for user in queryset:
            user.is_active = True
            user.save(update_fields=["is_active"])
            self.message_user(request, f"{user} is switched on.", messages.SUCCESS)


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnlyAdmin):
    list_display = ["name", "user", "token_key", "created", "expiry", "last_used_at"]
    list_select_related = ["user"]
    list_filter = ["expiry"]
    search_fields = ["name", "user__username"]
    fields = ["name", "user", "token_key", "created", "expiry", "last_used_at"]

    def has_delete_permission(self, request: HttpRequest, obj: ApiToken | None = None) -> bool:
        """A token that leaked must be ended at once, by whoever hears of it first."""
        return bool(request.user.is_superuser and (obj is None or obj.pk))
