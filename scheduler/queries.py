"""temporary"""
class Queries:
    pass
