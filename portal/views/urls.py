"""Routes of the pages."""

from django.urls import path

from portal.views import dashboard

app_name = "portal"
urlpatterns = [
    path("", dashboard.dashboard, name="dashboard"),
]
