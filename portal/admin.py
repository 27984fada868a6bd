"""Admin pages of accounts."""

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin

from portal.models import User

admin.site.register(User, UserAdmin)
