"""What the loops do on a GPU, without one: fake CUDA tensors run every operation and hold no data.

A read of the device is an operation after which the host waits until the GPU has finished.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from lpld_core.device import read_behind, to_device
from lpld_core.networks.models import network_source
from lpld_core.recover.optimise import GroupOptimiser, layer_targets
from lpld_core.recover.settings import RecoverSettings
from lpld_core.squeeze.squeeze import ClassMoments, batch_rows, gather
from lpld_core.teachers.ensemble import Ensemble
from lpld_core.teachers.teacher import LoadedTeacher
from lpld_core.train.settings import TrainSettings
from lpld_core.train.student import StudentLoss
from lpld_core.train.trainer import EpochProgress, Trainer, TrainingBatch, _optimizer
from lpld_labels.format.manifest import Teacher
from lpld_labels.render.device import send

NORMALISATION: dict[str, Any] = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
CLASSES, ROWS, SIZE = 10, 8, 32
ATEN = torch.ops.aten


class Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Counts operations that make the host wait for the GPU. Every number read is 0.5."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self.parameters: list[nn.Parameter] = []

    def set_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [value for value in args if isinstance(value, Tensor)]
        on_gpu = any(tensor.is_cuda for tensor in tensors)
        if function is ATEN._local_scalar_dense.default:
            self.counts["item"] += on_gpu
            return 0.5 if tensors[0].is_floating_point() else 0
        result = function(*args, **kwargs)
        queued = kwargs.get("non_blocking") or (function is ATEN.copy_.default and len(args) > 2 and args[2])
        if function in COPIES:
            crosses = len({tensor.device.type for tensor in [*tensors, result]}) > 1
            self.counts["copy"] += crosses and not queued
        if function in SIZED_BY_VALUES:
            self.counts[str(function)] += on_gpu
        return result


COPIES = (ATEN._to_copy.default, ATEN.copy_.default)
SIZED_BY_VALUES = (
    *(ATEN.nonzero.default, ATEN.bincount.default, ATEN._unique2.default, ATEN.masked_select.default),
    *(ATEN.repeat_interleave.Tensor, ATEN.equal.default),
)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reads]:
    """Make tensors fake while the test runs, and count reads of the GPU.

    Without a GPU, torch's backward pass refuses CUDA tensors, so gradients are zeros. Copying the memory of
    fake tensors would corrupt the heap, so a copy of a network is a new one.
    """
    reads = Reads()
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(nn.Module, "to", _module_to)
    monkeypatch.setattr(nn.Module, "__deepcopy__", lambda self, memo: network().to("cuda"), raising=False)
    monkeypatch.setattr(torch.autograd, "grad", lambda _, inputs: (torch.zeros_like(inputs),))
    monkeypatch.setattr(Tensor, "backward", lambda _: reads.set_gradients())
    with FakeTensorMode(allow_non_fake_inputs=True), reads:
        yield reads


def _module_to(self: nn.Module, device: Any = None, **options: Any) -> nn.Module:
    """Replace parameters and buffers: torch cannot move those of a module in place if they are fake."""
    for module in self.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                moved = parameter.detach().to(device=device) if device else parameter.detach()
                module._parameters[name] = nn.Parameter(moved, requires_grad=parameter.requires_grad)
        for name, buffer in module._buffers.items():
            module._buffers[name] = buffer.to(device=device) if device and buffer is not None else buffer
    return self


def network() -> nn.Module:
    return network_source("small-resnet10:width=8").build(CLASSES).module


def gpu_teacher() -> LoadedTeacher:
    return LoadedTeacher(
        model=network().to("cuda").eval().requires_grad_(requires_grad=False),
        description=Teacher(name="teacher", **NORMALISATION),
        input_size=(SIZE, SIZE),
        classes=CLASSES,
    )


def pixels() -> Tensor:
    return torch.zeros(ROWS, 3, SIZE, SIZE, dtype=torch.uint8)


TRAINING: list[dict[str, Any]] = [
    {},
    {"amp": "bf16"},
    {"amp": "fp16"},
    {"ema": 0.9},
    {"accumulate": 2},
    {"loss": "mse+gt"},
    {"student_temperature": "calibrated"},
]


@pytest.mark.parametrize("settings", TRAINING, ids=str)
def test_training_reads_the_loss_every_n_steps(reads: Reads, settings: dict[str, Any]) -> None:
    chosen = TrainSettings(device="cuda", **NORMALISATION, **settings)
    trainer = Trainer(network(), chosen)
    reads.parameters = list(trainer.model.parameters())
    trainer._steps_per_read = 3
    loss = StudentLoss(chosen, label_kind="logits")
    labels = torch.zeros(ROWS, CLASSES, device="cuda")
    classes = torch.zeros(ROWS, dtype=torch.int64, device="cuda")
    batches = (TrainingBatch(pixels(), loss.of(labels, classes)) for _ in range(7))
    seen: list[EpochProgress] = []
    reads.counts.clear()
    trainer.run_epoch(0, batches, steps=7, after_step=seen.append)
    assert [progress.steps for progress in seen] == [3, 6, 7]
    assert +reads.counts == {"copy": 3}
    loss.end_epoch()
    assert +reads.counts == {"copy": 4 if "student_temperature" in settings else 3}


def test_labelling_never_waits_for_the_gpu(reads: Reads) -> None:
    ensemble = Ensemble([gpu_teacher(), gpu_teacher()])
    reads.counts.clear()
    results = list(read_behind((n, ensemble.outputs(pixels())) for n in range(3)))
    assert [number for number, _ in results] == [0, 1, 2]
    assert {labels.device.type for _, labels in results} == {"cpu"}
    assert not +reads.counts


def test_recovery_never_waits_for_the_gpu(reads: Reads) -> None:
    settings = RecoverSettings(
        method="lpld", ipc=2, iterations=3, learning_rate=0.1, alpha=0.05, roll=2, size=(SIZE, SIZE)
    )
    teacher = gpu_teacher()
    targets = layer_targets(teacher, None, "global")
    optimiser = GroupOptimiser(teacher, settings.groups(CLASSES)[0], targets, settings)
    reads.counts.clear()
    for iteration in range(3):
        optimiser.step(optimiser.losses(iteration).total(settings.alpha).sum(), iteration)
    assert not +reads.counts


@pytest.mark.parametrize("momentum", [None, 0.1])
def test_class_statistics_never_wait_for_the_gpu(reads: Reads, momentum: float | None) -> None:
    teacher = gpu_teacher()
    rows = batch_rows(teacher)
    moments = ClassMoments(CLASSES, rows.shift, momentum)
    batches = ((pixels().float(), torch.zeros(ROWS, dtype=torch.int64)) for _ in range(3))
    reads.counts.clear()
    assert list(gather(teacher, batches, rows, moments)) == [ROWS] * 3
    assert not +reads.counts


def test_only_copies_to_a_gpu_are_queued() -> None:
    """MPS, for which the meta device stands, reads the original when its memory may hold something else."""
    with Reads() as reads:
        to_device(torch.zeros(2), torch.device("meta"))
        send([torch.zeros(2)], torch.device("meta"))
    assert reads.counts["copy"] == 2


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="training in fp16 requires PyTorch 2.3")
def test_sgd_keeps_nothing_of_a_first_step_that_overflows() -> None:
    """Built for a GPU. A CPU can take fused steps as well."""
    model = nn.Linear(2, 1)
    optimizer = _optimizer(model, TrainSettings(device="cuda", amp="fp16", optimizer="sgd"))
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(2, 2)).sum() * torch.inf).backward()
    scaler.step(optimizer)
    assert not optimizer.state


def test_a_read_in_the_loss_is_counted(reads: Reads) -> None:
    """The counter above finds what it is for."""
    trainer = Trainer(network(), TrainSettings(device="cuda", **NORMALISATION))

    def loss_of(output: Tensor, rows: slice) -> Tensor:
        float(output.sum().detach())
        return output.sum()

    reads.counts.clear()
    trainer.run_epoch(0, [TrainingBatch(pixels(), loss_of)] * 2, steps=2)
    assert reads.counts["item"] == 2
