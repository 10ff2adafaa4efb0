"""The link to the console in Django's admin."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.http import HttpResponseRedirect
from django.urls import reverse

from scheduler.django import options, stores
from scheduler.django.models import Console


@admin.register(Console)
class ConsoleAdmin(admin.ModelAdmin):
    """Leads to the console, which asks for a log-in of its own."""

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        """Redirect to the console; back to the admin, with a word, where its address is not known."""
        url = next(filter(None, (options.console_url(one.options) for one in stores.backends())), None)
        if url is None:
            messages.warning(request, 'schedd has no console here: SCHEDD = {"console": {"listen": "127.0.0.1:8321"}}')
            url = reverse("admin:index", current_app=self.admin_site.name)
        return HttpResponseRedirect(url)

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False
