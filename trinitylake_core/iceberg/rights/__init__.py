"""Who may name which place: where metadata files lie, what a table may name, and what it leaves when it moves."""
