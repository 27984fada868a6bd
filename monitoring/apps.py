"""The app's place in Django."""

from django.apps import AppConfig


class MonitoringConfig(AppConfig):
    name = "monitoring"
    verbose_name = "Monitoring"

    def ready(self) -> None:
        """Listen to what jobs announce."""
        import monitoring.receivers  # noqa: F401 - importing it connects it
