"""How fast the method is: class statistics against a loop over classes, recovery by class group.

1. The activations of one batch -> class statistics, by segment sums over per-image sums (what
   lpld_core does) and by masking out one class after the other, at 20, 200 and 1000 classes, for the
   small ResNet of the documented example at 32 px and for ResNet-18 at 64 px. All ways must
   agree; the forward pass is not counted. Masking costs time per class and layer,
   segment sums only per byte, so the gain is greater the smaller the activations are.
2. Recovery of 20 classes x 10 images with 1, 4, 10 and 20 classes per forward pass, in
   image-iterations per second.

    python -m benchmarks.speed.method --json benchmarks/results/method_speed.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common.harness import Timing, interleaved, parsed, write_json
from lpld_core.networks.batchnorm import BatchNormLayer, batchnorm_layers, watched_inputs
from lpld_core.recover.optimise import layer_targets, recover_group
from lpld_core.recover.settings import Group, RecoverSettings, class_units, grouped
from lpld_core.squeeze.squeeze import BatchRows, ClassMoments
from lpld_core.teachers.teacher import LoadedTeacher, load_teacher
from lpld_labels.exec.job import run_task

SMALL_NETWORK = "small-resnet10:width=32,stem_stride=2"
NETWORKS = ((SMALL_NETWORK, 32), ("resnet18", 64))
"""Network and side of its images in pixels."""
Activations = list[Tensor]


class SegmentSums:
    """What lpld_core does: rows of per-image moments, then one segment sum for everything."""

    def __init__(self, classes: int, layers: Sequence[BatchNormLayer]) -> None:
        self._rows = BatchRows(layers)
        self._moments = ClassMoments(classes, self._rows.shift)

    def add(self, activations: Activations, labels: Tensor) -> None:
        """Add a batch to all classes at once."""
        for number, values in enumerate(activations):
            self._rows.watch(number, values)
        self._moments.add(labels, *self._rows.take(len(labels)))

    def result(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance, float64 [classes, channels of all layers]."""
        return self._moments.result()


class MaskingLoop:
    """The plain way: layer by layer, class by class, mask the images out and take their moments.

    The two lines that do it are those of the programs that match BatchNorm statistics (DeepInversion's).
    present_only: look only for classes that are in the batch.
    """

    def __init__(self, classes: int, layers: Sequence[BatchNormLayer], *, present_only: bool) -> None:
        self._present_only = present_only
        self._images = torch.zeros(classes, 1, dtype=torch.float64)
        self._tables = [
            [torch.zeros(classes, layer.channels, dtype=torch.float64) for _ in range(2)] for layer in layers
        ]

    def add(self, activations: Activations, labels: Tensor) -> None:
        """Add a batch, one class after the other."""
        classes = sorted(set(labels.tolist())) if self._present_only else range(len(self._images))
        for values, (first, second) in zip(activations, self._tables, strict=True):
            for label in classes:
                chosen = values[labels == label]
                if len(chosen) == 0:
                    continue
                mean = chosen.mean(dim=(0, 2, 3))
                variance = chosen.permute(1, 0, 2, 3).reshape(len(mean), -1).var(dim=1, correction=0)
                first[label] += len(chosen) * mean
                second[label] += len(chosen) * (variance + mean.square())
        self._images += torch.bincount(labels, minlength=len(self._images)).view(-1, 1)

    def result(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance, float64 [classes, channels of all layers]."""
        first, second = (torch.cat(tables, dim=1) for tables in zip(*self._tables, strict=True))
        mean = first / self._images
        return mean, second / self._images - mean.square()


def network_activations(model: nn.Module, size: int, batch: int) -> Activations:
    """Return what a network's BatchNorm layers take in for a batch of noise."""
    images = torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0))
    taken: Activations = []

    def watch(number: int, values: Tensor) -> None:
        taken.append(values.clone())

    with watched_inputs(batchnorm_layers(model), watch), torch.inference_mode():
        model(images.contiguous(memory_format=torch.channels_last))
    return taken


def statistics_speed(
    network: str, size: int, *, classes: Sequence[int], batch: int, runs: int
) -> Iterator[dict[str, Any]]:
    """Time one batch of class statistics all ways, for several class counts."""
    teacher = load_teacher(network, weights="random", classes=1000, input_size=(size, size))
    layers = batchnorm_layers(teacher.model)
    activations = network_activations(teacher.model, size, batch)
    for count in classes:
        labels = torch.randint(0, count, (batch,), generator=torch.Generator().manual_seed(count))
        ways: dict[str, SegmentSums | MaskingLoop] = {
            "segment_sums": SegmentSums(count, layers),
            "loop_over_all_classes": MaskingLoop(count, layers, present_only=False),
            "loop_over_present_classes": MaskingLoop(count, layers, present_only=True),
        }
        work = {name: partial(way.add, activations, labels) for name, way in ways.items()}
        timings = interleaved(work, runs=runs, warm_up=1)
        _check_equal([way.result() for way in ways.values()], labels)
        own = timings["segment_sums"].median
        yield {
            "network": network,
            "size": size,
            "classes": count,
            "classes_present": len(set(labels.tolist())),
            "batch": batch,
            "activation_bytes": sum(values.nbytes for values in activations),
            "timings": {name: timing.as_json() for name, timing in timings.items()},
            "times_faster_than_all_classes": round(timings["loop_over_all_classes"].median / own, 1),
            "times_faster_than_present_classes": round(timings["loop_over_present_classes"].median / own, 1),
        }


def _check_equal(results: list[tuple[Tensor, Tensor]], labels: Tensor) -> None:
    """Stop if the ways do not give the same statistics for the classes in the batch."""
    seen = sorted(set(labels.tolist()))
    for other in results[1:]:
        for found, expected in zip(results[0], other, strict=True):
            torch.testing.assert_close(found[seen], expected[seen], rtol=1e-4, atol=1e-5)


def recovery_speed(
    *, groups: tuple[int, ...], classes: int, ipc: int, iterations: int, runs: int, size: int
) -> list[dict[str, Any]]:
    """Time the recovery of the same images with several class groups."""
    teacher = load_teacher(SMALL_NETWORK, weights="random", classes=classes, input_size=(size, size))
    targets = layer_targets(teacher, None, "global")
    work: dict[str, Callable[[], object]] = {}
    for group_size in groups:
        settings = RecoverSettings(
            method="lpld",
            ipc=ipc,
            iterations=iterations,
            learning_rate=0.1,
            alpha=0.05,
            roll=4,
            size=(size, size),
            statistics_kind="global",
            class_group=group_size,
        )
        plan = grouped(class_units(classes, ipc), group_size)
        work[str(group_size)] = partial(_recover_all, teacher, plan, targets, settings)
    _check_same_images(work)
    timings = interleaved(work, runs=runs, warm_up=0)
    image_iterations = classes * ipc * iterations
    base = timings[str(groups[0])].median
    return [_recovery_result(int(name), timing, image_iterations, base) for name, timing in timings.items()]


def _recover_all(
    teacher: LoadedTeacher, plan: list[Group], targets: Any, settings: RecoverSettings
) -> Tensor:
    made = [run_task(recover_group(teacher, group, targets, settings), lambda _: True) for group in plan]
    return torch.cat([outcome.fact.images for outcome in made if outcome is not None])


def _check_same_images(work: dict[str, Callable[[], Any]]) -> None:
    """Stop if a class group changes the images by more than rounding does."""
    images = [call() for call in work.values()]
    for other in images[1:]:
        difference = (other - images[0]).abs()
        # Adam's first steps have the size of the rate whatever the gradient, so that where a gradient
        # is all rounding a pixel may go the other way; such pixels must stay rare.
        share = float((difference > 0.01).float().mean())
        if share > 0.01:
            raise SystemExit(f"class groups give different images: {share:.2%} of the pixels differ")


def _recovery_result(group_size: int, timing: Timing, image_iterations: int, base: float) -> dict[str, Any]:
    return {
        "class_group": group_size,
        "timing": timing.as_json(),
        "image_iterations_per_s": round(image_iterations / timing.median, 1),
        "times_faster_than_group_1": round(base / timing.median, 2),
    }


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--quick", action="store_true", help="a tiny run that shows it works")
    parser.add_argument("--threads", type=int, default=1)
    options = parsed(parser, arguments)
    torch.set_num_threads(options.threads)
    quick = options.quick
    statistics: list[dict[str, Any]] = []
    for network, size in NETWORKS[: 1 if quick else 2]:
        classes = (20, 50) if quick else (20, 200, 1000)
        statistics += statistics_speed(
            network, size, classes=classes, batch=16 if quick else 256, runs=1 if quick else 7
        )
    for entry in statistics:
        print(
            f"statistics, {entry['network']}, {entry['classes']} classes: "
            f"{entry['times_faster_than_all_classes']}x a loop over all classes, "
            f"{entry['times_faster_than_present_classes']}x one over those present"
        )
    recovery = recovery_speed(
        groups=(1, 2) if quick else (1, 4, 10, 20),
        classes=2 if quick else 20,
        ipc=2 if quick else 10,
        iterations=2 if quick else 5,
        runs=1 if quick else 7,
        size=16 if quick else 32,
    )
    for entry in recovery:
        print(
            f"recovery, class group {entry['class_group']}: {entry['image_iterations_per_s']} "
            f"image-iterations/s, {entry['times_faster_than_group_1']}x group 1"
        )
    if options.json is not None:
        results = {"threads": options.threads, "statistics": statistics, "recovery": recovery}
        command = "python -m benchmarks.speed.method " + " ".join(arguments or sys.argv[1:])
        write_json(options.json, benchmark="method_speed", command=command, results=results)


if __name__ == "__main__":
    main()
