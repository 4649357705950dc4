"""``python -m sandboxes``: the same as ``sandboxes``."""

import sys

from sandboxes import main

sys.exit(main())
