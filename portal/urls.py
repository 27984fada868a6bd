"""Routes of the whole project."""

from http import HTTPStatus

from django.contrib import admin
from django.urls import include, path
from django.views import defaults

from portal.api.exceptions import for_api
from portal.views import health

urlpatterns = [
    path("", include("portal.views.urls")),
    path("livez", health.livez, name="livez"),
    path("readyz", health.readyz, name="readyz"),
    path("accounts/", include("allauth.urls")),
    path("admin/", admin.site.urls),
    path("api/", include("portal.api.urls")),
]

# People get the pages 404.html and so on of the templates, programs the one shape of errors.
handler400 = for_api(HTTPStatus.BAD_REQUEST, defaults.bad_request)
handler403 = for_api(HTTPStatus.FORBIDDEN, defaults.permission_denied)
handler404 = for_api(HTTPStatus.NOT_FOUND, defaults.page_not_found)
handler500 = for_api(HTTPStatus.INTERNAL_SERVER_ERROR, defaults.server_error)
