"""``python -m pipelines.cli``: the same as ``trinitylake``."""

import sys

from pipelines.cli.app import main

sys.exit(main())
