"""What a commit of a table must keep true: updates that fit, files that are there, deletions that stay, snapshots."""
