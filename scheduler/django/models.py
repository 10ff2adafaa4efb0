"""What Django's admin shows of schedd: a link to the console, in the list of apps. No table belongs to it."""

from __future__ import annotations

from django.db import models


class Console(models.Model):
    """Whoever may view it gets the link."""

    class Meta:
        managed = False
        default_permissions = ("view",)
        verbose_name = verbose_name_plural = "console"
