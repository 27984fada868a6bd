"""The app's place in Django."""

from pathlib import Path

from django.apps import AppConfig
from django.conf import settings


class ClusterConfig(AppConfig):
    name = "cluster"
    verbose_name = "Cluster"

    def ready(self) -> None:
        """Tell the adapters of this installation."""
        from cluster.adapters import registry

        registry.configure(
            registry.RegistryConfig(
                state_dir=Path(settings.STATE_DIR),
                instance=settings.STARLING["INSTANCE"],
                process_allowed=settings.STARLING["PROCESS_RUNTIME"],
                probe_image=settings.STARLING["PROBE_IMAGE"],
                simulated_gpus=settings.STARLING["SIMULATED_GPUS"],
            )
        )
