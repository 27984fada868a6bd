"""Routes of the REST root; each app adds its own."""

from django.urls import include, path

v1: list[object] = [path("", include("jobs.api.uploads"))]

urlpatterns = [path("v1/", include((v1, "v1")))]
