"""Routes of logs, metrics and samples."""

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
