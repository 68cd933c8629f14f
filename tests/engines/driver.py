"""Ray with workers that take their time, so that they can be killed in the middle of a task.

driver.py COMMAND SOURCE OUT [ADDRESS] is a driver that can be killed itself. It prints the digest of what it
made, and how many units had been left to do.
"""

import dataclasses
import functools
import sys
import time
from pathlib import Path
from typing import Any

from lpld_labels.exec.job import Job, Progress, Start, Steps, Worker
from lpld_labels.exec.ray import RayExecutor, RaySettings
from tests.engines.commands import COMMANDS
from tests.engines.ray_cluster import WHOLE
from tests.lpld_labels.exec.test_local import Watcher

STEP_SECONDS = 0.3 if WHOLE else 0.15


class SlowExecutor(RayExecutor):
    """Ray with slow workers. retried: tasks begun again; left: units that were not done before."""

    retried = 0
    left = 0

    def run(self, job: Job[Any], progress: Progress | None = None) -> list[Any]:
        seen = Watcher()
        self.left += job.total - job.done
        facts = super().run(dataclasses.replace(job, start=functools.partial(start_slowly, job.start)), seen)
        self.retried += seen.counts[-1].retried if seen.counts else 0
        return facts


def start_slowly(start: Start[Any], number: int) -> "SlowWorker":
    return SlowWorker(start(number))


@dataclasses.dataclass(frozen=True)
class SlowWorker:
    worker: Worker[Any]

    def do(self, task: Any, *, again: bool) -> Steps:
        steps = self.worker.do(task, again=again)
        while True:
            try:
                units = next(steps)
            except StopIteration as end:
                return end.value
            time.sleep(STEP_SECONDS)
            yield units


def main() -> None:
    name, source, out, *address = sys.argv[1:]
    settings = RaySettings(address=address[0] if address else None, workers=2)
    with (engine := SlowExecutor(settings)):
        content = COMMANDS[name].run(Path(source), Path(out), engine)
    sys.stdout.write(f"{content} {engine.left}\n")


if __name__ == "__main__":
    main()
