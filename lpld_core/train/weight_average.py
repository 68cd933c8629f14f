"""A moving average of a network's weights, as LPLD's and LPQLD's programs take it (ema_pytorch's defaults).

Every tenth step the average moves towards the network by 1 - decay. Until step 100 it is a copy; after
that the decay rises with the steps n since as 1 - (1 + n)^(-2/3), and stops at the decay asked for.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from lpld_core.networks.weights import Tensors

STEPS_APART = 10
STARTS_AFTER = 100
POWER = 2 / 3
_MODEL, _STEPS = "average.", "average_steps"


class WeightAverage:
    """Averages parameters and buffers (BatchNorm's statistics) of a network. decay: 0 to 1, its highest."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(requires_grad=False).eval()
        self._decay = decay
        self._steps = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take in the network as it is before a step."""
        step, self._steps = self._steps, self._steps + 1
        if step % STEPS_APART:
            return
        since = step - STARTS_AFTER
        decay = min(self._decay, 1 - (1 + since) ** -POWER) if since > 0 else 0.0
        ours = self.model.state_dict()
        for name, value in model.state_dict().items():
            if decay and value.is_floating_point():
                ours[name].lerp_(value, 1 - decay)
            else:
                ours[name].copy_(value)

    def state(self) -> Tensors:
        """Return the averaged network and how many steps it has seen."""
        tensors = {f"{_MODEL}{name}": value for name, value in self.model.state_dict().items()}
        return {**tensors, _STEPS: torch.tensor(self._steps)}

    def load_state(self, tensors: Tensors) -> None:
        """Go on from what `state` returned, which may have been saved with other tensors."""
        self.model.load_state_dict(
            {name.removeprefix(_MODEL): value for name, value in tensors.items() if name.startswith(_MODEL)}
        )
        self._steps = int(tensors[_STEPS])
