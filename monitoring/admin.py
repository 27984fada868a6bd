"""Admin pages of logs: how far each is stored; lines and samples have pages of their own."""

from django.contrib import admin

from cluster.admin import ReadOnlyAdmin
from monitoring.models import LogStream


@admin.register(LogStream)
class LogStreamAdmin(ReadOnlyAdmin):
    list_display = ["replica", "next_line", "stored_bytes", "dropped_lines", "is_complete"]
    list_filter = ["is_complete"]
    list_select_related = ["replica"]
    search_fields = ["replica__public_id", "replica__attempt__job__public_id"]
