"""The link to the console in Django's admin: a model without a table."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Django compares this with the models: without it `makemigrations` would write one."""

    initial = True
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="Console",
            fields=[
                ("id", models.AutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
            ],
            options={
                "verbose_name": "console",
                "verbose_name_plural": "console",
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
    ]
