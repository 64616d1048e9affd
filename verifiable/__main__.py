"""``python -m verifiable`` is the command `verifiable`."""

import sys

from verifiable.cli import main

sys.exit(main())
