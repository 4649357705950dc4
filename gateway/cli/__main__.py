"""``python -m gateway.cli``: the same as ``sandboxes``."""

import sys

from gateway.cli import main

sys.exit(main())
