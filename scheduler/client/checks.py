"""Checks of what programs pass in."""

from scheduler.model.spec import check_id as check_id
