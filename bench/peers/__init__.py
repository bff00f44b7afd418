"""Other queues. Their packages are in a folder of their own, where nothing but this finds them."""

import sys
from pathlib import Path

sys.path.append(str(Path(sys.prefix) / "peers"))
