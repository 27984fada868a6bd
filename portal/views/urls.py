"""Routes of the pages."""

from django.urls import path

from portal.views import (
    account,
    cluster,
    dashboard,
    datasets,
    jobs,
    lab,
    simulations,
    submission,
)

app_name = "portal"
urlpatterns = [
    path("", dashboard.dashboard, name="dashboard"),
    path("datasets/", datasets.dataset_list, name="dataset-list"),
    path("datasets/<uuid:public_id>/", datasets.dataset_detail, name="dataset-detail"),
    path("datasets/<uuid:public_id>/delete/", datasets.dataset_delete, name="dataset-delete"),
    path("jobs/", jobs.job_list, name="job-list"),
    path("jobs/new/", submission.job_create, name="job-create"),
    path("jobs/<uuid:public_id>/", jobs.job_detail, name="job-detail"),
    path("jobs/<uuid:public_id>/row/", jobs.job_row, name="job-row"),
    path("jobs/<uuid:public_id>/parts/<slug:part>/", jobs.job_part, name="job-part"),
    path("jobs/<uuid:public_id>/clone/", submission.job_clone, name="job-clone"),
    path("jobs/<uuid:public_id>/cancel/", jobs.job_cancel, name="job-cancel"),
    path("jobs/<uuid:public_id>/rerun/", jobs.job_rerun, name="job-rerun"),
    path("jobs/<uuid:public_id>/delete/", jobs.job_delete, name="job-delete"),
    path("cluster/", cluster.cluster, name="cluster"),
    path("cluster/<slug:name>/", cluster.host_detail, name="host-detail"),
    path("lab/", lab.lab, name="lab"),
    path("lab/<uuid:public_id>/", lab.lab_detail, name="lab-detail"),
    path("lab/<uuid:public_id>/cancel/", lab.lab_cancel, name="lab-cancel"),
    path("lab/<uuid:public_id>/delete/", lab.lab_delete, name="lab-delete"),
    path("simulations/", simulations.simulation_list, name="simulation-list"),
    path("simulations/new/", simulations.simulation_create, name="simulation-create"),
    path("simulations/<uuid:public_id>/", simulations.simulation_detail, name="simulation-detail"),
    path(
        "simulations/<uuid:public_id>/cancel/",
        simulations.simulation_cancel,
        name="simulation-cancel",
    ),
    path(
        "simulations/<uuid:public_id>/delete/",
        simulations.simulation_delete,
        name="simulation-delete",
    ),
    path("account/", account.account, name="account"),
    path("account/tokens/", account.tokens, name="tokens"),
    path("account/tokens/<uuid:public_id>/revoke/", account.token_revoke, name="token-revoke"),
]
