"""What Dagster shows of a report: tables, numbers, texts and pictures."""
