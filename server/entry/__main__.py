"""`python -m mambad`.

The one module directly in the `mambad` namespace. It stands in a folder of its own, which `pyproject.toml`
maps to `mambad`: a namespace shared by four folders can't have an `__init__.py`.
"""

import sys

from mambad.server.cli import main

sys.exit(main())
