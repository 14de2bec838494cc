"""Views: their operations, and the definition of a view as Iceberg metadata and back."""
