"""The page after sign-in."""

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render


@login_required
def dashboard(request: HttpRequest) -> HttpResponse:
    """Show the owner's latest jobs and what the cluster is doing."""
    return render(request, "portal/dashboard.html")
