"""What every test shares: the fixtures of support/databases.py, the case markers of
support/casebook.py, the workers of support/fleet.py.
"""

from hypothesis import settings

pytest_plugins = [
    "support.session",
    "support.databases",
    "support.casebook",
    "support.bench",
    "support.measurements",
    "support.fleet",
    "support.flows",
]

settings.register_profile("schedd", deadline=None, print_blob=True)
settings.load_profile("schedd")
