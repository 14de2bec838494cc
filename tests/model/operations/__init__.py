"""What the judge does. Each module registers its operations when it is imported."""

from tests.model.operations import changes, iceberg, jobs, looks, namespaces, register, views

__all__ = ["changes", "iceberg", "jobs", "looks", "namespaces", "register", "views"]
