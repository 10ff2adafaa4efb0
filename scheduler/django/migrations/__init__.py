"""Migrations of the app in Django: of the link to the console only, which has no table."""
