"""The admin pages as a whole: who may in, what stands first, what needs attention."""

from typing import Any, Final

from allauth.account.decorators import secure_admin_login
from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone

#: The order of the sections; what is not named here comes last.
_SECTIONS: Final = ("cluster", "jobs", "portal", "auditlog")
#: Django's groups decide nothing here, the role does; addresses are on the account's own page.
_HIDDEN: Final = {"auth", "account"}


class PortalAdminSite(AdminSite):
    """Django's admin with this product's name, order and front page."""

    site_header = "Starling"
    site_title = "Starling admin"
    index_title = "Administration"
    index_template = "admin/front.html"
    empty_value_display = "-"

    def index(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> TemplateResponse:
        """Show what needs attention above the list of everything."""
        from portal import selectors

        attention = selectors.attention(now=timezone.now())
        return super().index(request, {**(extra_context or {}), "attention": attention})

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        """Return the sections in the order in which they are needed."""
        sections = [
            section
            for section in super().get_app_list(request, app_label)
            if section["app_label"] not in _HIDDEN
        ]
        order = {label: place for place, label in enumerate(_SECTIONS)}
        return sorted(sections, key=lambda section: order.get(section["app_label"], 99))

    def login(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Send people to the one sign-in page, which counts failed tries."""
        page = secure_admin_login(super().login)
        answer: HttpResponse = page(request, extra_context)
        return answer
