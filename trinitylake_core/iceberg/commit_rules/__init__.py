"""What a commit of a table must keep true: updates that fit, files that are there, deletions that stay, snapshots.

``commit_table`` of ``iceberg/tables.py`` asks the rules of a commit that a client sends, before anything is written.
The rules of files that are added are asked by ``Attempt`` (``iceberg/attempt.py``), whoever adds them: a table that is
registered passes no others. ``replace_files`` and ``expire_snapshots``, for jobs, ask only whether their updates fit.
"""
