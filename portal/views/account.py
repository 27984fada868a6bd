"""One's own profile, quota and API tokens."""

from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from jobs.errors import InvalidInputError, QuotaExceededError
from portal import selectors, services
from portal.forms import ProfileForm, TokenForm, add_errors
from portal.views.access import member, page


@page
@require_http_methods(["GET", "HEAD", "POST"])
def account(request: HttpRequest) -> HttpResponse:
    """Show the profile and what is used of each limit; take changes of the name."""
    user = member(request)
    form = ProfileForm(request.POST or None, instance=user)
    if request.method == "POST" and form.is_valid():
        form.save()
        messages.success(request, "Your profile is saved.")
        return redirect("portal:account")
    return render(
        request, "portal/account.html", {"form": form, "use": selectors.account_use(user)}
    )


@page
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def tokens(request: HttpRequest) -> HttpResponse:
    """List the tokens of REST clients, and make one; its secret is on this one answer only."""
    user = member(request)
    form = TokenForm(request.POST or None)
    secret = ""
    if request.method == "POST" and form.is_valid():
        try:
            _, secret = services.token_create(user=user, now=timezone.now(), **form.cleaned_data)
            form = TokenForm()
        except InvalidInputError as error:
            add_errors(form, error.fields)
        except QuotaExceededError as error:
            form.add_error(None, str(error))
    context = {"form": form, "secret": secret, "tokens": selectors.token_list(user)}
    return render(request, "portal/tokens.html", {**context, "now": timezone.now()})


@page
@require_POST
def token_revoke(request: HttpRequest, public_id: UUID) -> HttpResponse:
    """End a token at once."""
    services.token_revoke(user=member(request), public_id=public_id)
    messages.success(request, "The token is revoked; programs that use it are refused from now on.")
    return redirect("portal:tokens")
