"""Routes of logs, metrics, samples and the live cluster."""

from django.urls import re_path

from cluster.api.base import HOST_PATTERN, UUID_PATTERN
from monitoring.api import views
from monitoring.api.prometheus import PrometheusView

_JOB = rf"^jobs/(?P<id>{UUID_PATTERN})/"

urlpatterns = [
    re_path(_JOB + r"logs/$", views.LogView.as_view(), name="job-logs"),
    re_path(_JOB + r"logs/text/$", views.LogTextView.as_view(), name="job-logs-text"),
    re_path(_JOB + r"logs/search/$", views.LogSearchView.as_view(), name="job-logs-search"),
    re_path(_JOB + r"logs/stream/$", views.LogStreamView.as_view(), name="job-logs-stream"),
    re_path(_JOB + r"metrics/$", views.MetricsView.as_view(), name="job-metrics"),
    re_path(_JOB + r"samples/$", views.JobSamplesView.as_view(), name="job-samples"),
    re_path(
        rf"^hosts/(?P<name>{HOST_PATTERN})/samples/$",
        views.HostSamplesView.as_view(),
        name="host-samples",
    ),
    re_path(
        r"^gpus/(?P<uuid>[A-Za-z0-9-]{1,80})/samples/$",
        views.GpuSamplesView.as_view(),
        name="gpu-samples",
    ),
    re_path(r"^cluster/$", views.ClusterView.as_view(), name="cluster"),
    re_path(r"^metrics/$", PrometheusView.as_view(), name="metrics"),
]
