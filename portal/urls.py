"""Routes of the whole project."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("", include("portal.views.urls")),
    path("accounts/", include("allauth.urls")),
    path("admin/", admin.site.urls),
    path("api/", include("portal.api.urls")),
]
