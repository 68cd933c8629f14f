"""A driver that can be killed: driver.py COMMAND SOURCE OUT [ADDRESS].

Prints the content that came of it, and how many units had been left to do.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lpld_labels.exec.ray import RaySettings
from tests.engines.commands import COMMANDS
from tests.engines.slow import SlowExecutor


def main() -> None:
    name, source, out, *address = sys.argv[1:]
    settings = RaySettings(address=address[0] if address else None, workers=2)
    engine = SlowExecutor(settings)
    with engine:
        content = COMMANDS[name].run(Path(source), Path(out), engine)
    sys.stdout.write(f"{content} {engine.left}\n")


if __name__ == "__main__":
    main()
