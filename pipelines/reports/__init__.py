"""What jobs tell people: sentences, tables and drawings. The command line and Dagster show the same ones."""
