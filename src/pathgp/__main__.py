"""``python -m pathgp``, the same as ``pathgp``."""

import sys

from pathgp.cli import main

sys.exit(main())
