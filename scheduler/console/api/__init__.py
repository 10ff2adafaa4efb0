"""The API for machines, below ``/api/v1``: one line of :mod:`table` for each route, behind the console's gate."""
