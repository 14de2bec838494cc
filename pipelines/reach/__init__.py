"""What is reached: files that are listed, those that versions and tables mean, and those that are neither."""
