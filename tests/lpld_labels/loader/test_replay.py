"""`replay="device"`: the training process renders views, and gets what workers render otherwise."""

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from lpld_labels import PoolReader
from lpld_labels.errors import InvalidArgumentError, PoolCorruptError
from lpld_labels.loader import PoolLoader, pool_loader
from lpld_labels.loader.batches import BatchMaker, BufferPool, Rows, SideStream
from lpld_labels.loader.schedule import Position, Processes, Schedule
from lpld_labels.loader.workers import LabelBatches, LabelStream
from lpld_labels.render import ImageStore
from lpld_labels.render.device import DeviceReplay, send
from lpld_labels.render.images import find_images
from lpld_labels.transforms.encode import encode_pool
from lpld_labels.transforms.settings import EncodeSettings
from tests.lpld_labels.loader.conftest import Pools
from tests.lpld_labels.loader.loader_pools import KINDS, MEAN, STD, build

CUDA = torch.device("cuda", 0)


def opened(pool: PoolReader, folder: Path, **options: Any) -> PoolLoader:
    return pool_loader(pool, folder, **{"batches_per_epoch": 6, "replay": "device", **options})


def assert_same(found: PoolLoader, expected: PoolLoader, epochs: int = 1) -> None:
    for _ in range(epochs):
        for ours, theirs in zip(found, expected, strict=True):
            for ours_of, theirs_of in zip(ours, theirs, strict=True):
                assert ours_of.dtype == theirs_of.dtype
                assert torch.equal(ours_of, theirs_of)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_bit_for_bit_those_of_the_cpu_replay(pools: Pools, folder: Path, kind: str) -> None:
    options: list[dict[str, Any]] = [
        {"batch_size": 27, "num_workers": 2},
        {"batch_size": None, "normalise": False},
        {"batch_size": 5, "rank": 1, "world_size": 3, "device_bytes": 0},
    ]
    for given in options:
        on_cpu = {**given, "replay": "cpu", "num_workers": 0}
        assert_same(opened(pools[kind], folder, **given), opened(pools[kind], folder, **on_cpu), epochs=2)


@pytest.mark.parametrize("replays", [("cpu", "device"), ("device", "cpu"), ("device", "device")])
def test_either_replay_resumes_what_the_other_began(
    pools: Pools, folder: Path, replays: tuple[str, str]
) -> None:
    whole = opened(pools["cutmix"], folder, batch_size=27)
    first, second = (opened(pools["cutmix"], folder, batch_size=27, replay=replay) for replay in replays)
    done = iter(first)
    for _ in range(3):
        next(done)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for found, expected in zip(second, list(whole)[3:], strict=True):
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


def test_auto_means_the_workers_where_the_device_is_no_gpu_of_cuda(pools: Pools, folder: Path) -> None:
    rendered = opened(pools["none"], folder, replay="auto")
    assert next(iter(rendered)).images.device.type == "cpu"
    mps = opened(pools["none"], folder, replay="auto", device="mps")
    for loader in (rendered, mps):
        stream: Any = loader.dataset._stream
        assert len(stream._loader.dataset.buffers)
    with pytest.raises(InvalidArgumentError, match=r"unknown replay .*auto, cpu, device"):
        opened(pools["none"], folder, replay="gpu")


class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Counts calls that the host waits for, and copies to the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        sources = [arg for arg in args if isinstance(arg, torch.Tensor)]
        name = func.overloadpacket.__name__
        if name in {"_local_scalar_dense", "nonzero"}:
            self.counts["waits"] += 1
        if name in {"_to_copy", "copy_"}:
            source, target = sources[-1].device.type, result.device.type
            if source != target:
                waits = target == "cpu" or not (kwargs.get("non_blocking") or args[2:3] == (True,))
                self.counts["waits" if waits else "copies"] += 1
        return result


@contextlib.contextmanager
def pretended_gpu() -> Iterator[Calls]:
    """Tensors of device "cuda" without values: operations fail if their tensors are on different devices."""
    with FakeTensorMode(allow_non_fake_inputs=True), Calls() as calls:
        yield calls


@pytest.mark.parametrize("replay", ["cpu", "device", "device, images in pinned memory"])
@pytest.mark.parametrize("codec", ["f16", "int8", "topk:3", "klt"])
@pytest.mark.parametrize("kind", ["cutout", "mixup", "patches"])
def test_nothing_waits_for_a_gpu(
    folder: Path, tmp_path: Path, kind: str, codec: str, replay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # streams are real
    pool = build(tmp_path / "pool", folder, kind, codec="f16" if codec == "klt" else codec)
    if codec == "klt":
        encode_pool(pool, tmp_path / "klt", EncodeSettings(codec="klt", fidelity=0.5))
        pool = PoolReader(tmp_path / "klt")
    store = ImageStore(find_images(pool, folder))
    batches = LabelBatches(pool, store if replay == "cpu" else None, buffers=8)
    schedule = Schedule.of(pool, sampling="stored", seed=0, batch=11)
    stream = LabelStream(batches, schedule, 0, 2, None).start(Position(0), Processes(0, 1))
    prepared = [next(stream) for _ in range(6)]
    with pretended_gpu() as calls:
        room = 0 if "pinned" in replay else 1 << 40
        how = pool.header.augmentation
        maker = BatchMaker(
            prepared=iter(prepared),
            batches=batches,
            classes=pool.images.classes.astype("int64"),
            normalisation=(MEAN, STD),
            temperature=4.0,
            pin_memory=False,
            memory=BufferPool(),
            device=CUDA,
            replay=None if replay == "cpu" else DeviceReplay(store, how, CUDA, device_bytes=room),
        )
        maker.make(11, 0)
        calls.counts.clear()
        for _ in range(3):
            batch = maker.make(11, 0)
            assert {tensor.device for tensor in batch} == {CUDA}
            assert batch.images.shape == (11, 3, 16, 16)
    assert calls.counts["waits"] == 0
    # Two copies per label batch at most, of views and of labels; without room, one more per image.
    taken = len(prepared) - len(list(maker.prepared))
    assert 0 < calls.counts["copies"] <= 2 * taken + (8 * taken if "pinned" in replay else 0)


class PretendedStream:
    """Notes in which order streams get work and wait for each other."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name, self._events = name, events

    def wait_stream(self, other: "PretendedStream") -> None:
        self._events.append(f"{self.name} waits for {other.name}")


def test_a_side_stream_is_one_ahead_and_keeps_errors_until_they_are_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []
    side, main = PretendedStream("side", events), PretendedStream("main", events)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: events.append("recorded"))
    made = iter(range(3))

    def make() -> Rows:
        number = next(made)
        events.append(f"make {number}")
        if number == 2:
            raise PoolCorruptError("broken")
        return Rows(torch.tensor(number), (), ())

    ahead = SideStream(CUDA, [torch.zeros(2)])
    assert [int(ahead.take(make).pixels) for _ in range(2)] == [0, 1]
    waits = ["main waits for side", "recorded"]
    assert events == ["side waits for main", "recorded", "make 0", *waits, "make 1", *waits, "make 2"]
    with pytest.raises(PoolCorruptError, match="broken"):
        ahead.take(make)


def test_tensors_of_any_kind_are_sent_in_one_copy() -> None:
    tensors = [torch.arange(3, dtype=torch.uint8), torch.empty(2, 0), torch.rand(2, 5), torch.arange(4)[None]]
    with pretended_gpu() as calls:
        sent = send(tensors, CUDA)
        assert [(t.shape, t.dtype, t.device) for t in sent] == [(t.shape, t.dtype, CUDA) for t in tensors]
    assert calls.counts == {"copies": 1}
    assert all(
        ours is theirs for ours, theirs in zip(send(tensors, torch.device("cpu")), tensors, strict=True)
    )
