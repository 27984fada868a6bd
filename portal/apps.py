"""The app's place in Django."""

from django.apps import AppConfig
from django.contrib.admin.apps import AdminConfig


class PortalConfig(AppConfig):
    name = "portal"
    verbose_name = "Accounts"

    def ready(self) -> None:
        """Register what is audited, and the checks of the installation."""
        from portal import audit, checks

        audit.register()
        checks.register()


class PortalAdminConfig(AdminConfig):
    default_site = "portal.admin_site.PortalAdminSite"
