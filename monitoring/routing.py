"""Routes of the sockets."""

from django.urls import path

from monitoring import consumers

websocket_urlpatterns = [
    path("ws/jobs/", consumers.OwnJobsConsumer.as_asgi(), name="ws-own-jobs"),
    path("ws/jobs/<uuid:job_id>/", consumers.JobConsumer.as_asgi(), name="ws-job"),
    path("ws/cluster/", consumers.ClusterConsumer.as_asgi(), name="ws-cluster"),
]
