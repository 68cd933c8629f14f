"""Where workers run their teachers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lpld_core.teachers.teacher import LoadedTeacher


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a worker computes with. threads: of torch; None leaves them as they are."""

    device: str = "cpu"
    threads: int | None = None

    def device_of(self, number: int) -> str:
        """Return the device of a worker; several are spread over the GPUs, other devices are shared."""
        return f"cuda:{number % torch.cuda.device_count()}" if self.device == "cuda" else self.device

    def set_up(self, teacher: LoadedTeacher, number: int) -> LoadedTeacher:
        """Set the threads of this worker and return the teacher on its device."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        return teacher.on(self.device_of(number))
