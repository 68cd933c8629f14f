import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from lpld_labels import PoolReader
from lpld_labels.errors import ImageMismatchError, ImageReadError, InvalidArgumentError, PoolCorruptError
from lpld_labels.loader import PoolBatch, PoolLoader, label_loader, pool_loader
from lpld_labels.loader.pool_loader import StepSampler
from lpld_labels.loader.schedule import SAMPLINGS, Schedule
from lpld_labels.render import ImageStore, apply_views, draw_views, normalise
from lpld_labels.render.apply import centre_view
from lpld_labels.render.decode import decode_image
from lpld_labels.render.images import FolderImages, check_images, find_images
from lpld_labels.transforms.copy import merge_pools
from lpld_labels.transforms.encode import encode_pool
from lpld_labels.transforms.settings import EncodeSettings
from tests.factories import flip_bit
from tests.lpld_labels.loader.conftest import Pools
from tests.lpld_labels.loader.loader_pools import KINDS, MEAN, STD, build, write_images

BATCH, PER_EPOCH = 32, 8


@pytest.fixture(scope="module")
def seen_by_teacher(pools: Pools, folder: Path) -> dict[str, dict[tuple[int, int], torch.Tensor]]:
    """What labelling feeds the teacher, drawn anew and not read from the pool."""
    tensors: dict[str, dict[tuple[int, int], torch.Tensor]] = {}
    for kind, pool in pools.items():
        store = ImageStore(FolderImages(folder, pool.images))
        augmentation = pool.header.augmentation
        tensors[kind] = {}
        for epoch, batch in pool.keys:
            views = draw_views(augmentation, pool.images, seed=5, epoch=epoch, batch=batch, batch_size=BATCH)
            tensors[kind][epoch, batch] = normalise(apply_views(views, store, augmentation), MEAN, STD)
    return tensors


def open_loader(pool: PoolReader, folder: Path, **options: Any) -> PoolLoader:
    return pool_loader(pool, folder, **{"batches_per_epoch": PER_EPOCH, **options})


def row_keys(batches: Sequence[PoolBatch]) -> list[tuple[int, ...]]:
    return [tuple(row) for batch in batches for row in batch.keys.tolist()]


def scheduled(
    pool: PoolReader, epoch: int, sampling: str = "shuffled", seed: int = 0
) -> list[tuple[int, ...]]:
    schedule = Schedule.of(pool, sampling=sampling, seed=seed, batches_per_epoch=PER_EPOCH)
    rows: list[tuple[int, ...]] = []
    for place in schedule.places(epoch).tolist():
        rows += [(*pool.index.key(place), slot) for slot in range(int(pool.index.rows[place]))]
    return rows


@pytest.mark.parametrize(("batch_size", "num_workers"), [(1, 0), (7, 2), (200, 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_bit_for_bit_what_the_teacher_saw_and_said(
    pools: Pools,
    seen_by_teacher: dict[str, dict[tuple[int, int], torch.Tensor]],
    folder: Path,
    kind: str,
    batch_size: int,
    num_workers: int,
) -> None:
    pool = pools[kind]
    loader = open_loader(pool, folder, batch_size=batch_size, num_workers=num_workers)
    assert isinstance(loader, DataLoader)
    length = len(loader)
    batches = list(loader)
    assert len(batches) == length
    assert {len(batch.images) for batch in batches[:-1]} <= {batch_size}
    keys = row_keys(batches)
    assert keys == scheduled(pool, 0)
    images = torch.cat([batch.images for batch in batches])
    expected = torch.stack([seen_by_teacher[kind][epoch, batch][slot] for epoch, batch, slot in keys])
    assert torch.equal(images, expected)
    labels = np.concatenate([batch.labels.numpy() for batch in batches])
    stored = np.stack([pool.read_labels((e, b), dtype=np.float32)[slot] for e, b, slot in keys])
    np.testing.assert_array_equal(labels, stored)
    classes = pool.images.classes
    for position, (epoch, batch, slot) in enumerate(keys):
        views = pool.read_views((epoch, batch))
        found = batches[position // batch_size]
        row = position % batch_size
        partner = slot if views.mix is None else int(views.mix.partner[slot])
        assert int(found.targets[row]) == classes[views.images[slot]]
        assert int(found.partner_targets[row]) == classes[views.images[partner]]
        assert float(found.mix_strength[row]) == np.float32(1 if views.mix is None else views.mix.strength)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_epochs_follow_each_other_and_break_ends_one(pools: Pools, folder: Path, num_workers: int) -> None:
    pool = pools["cutmix"]
    loader = open_loader(pool, folder, batch_size=50, num_workers=num_workers)
    assert [row_keys(list(loader)) for _ in range(2)] == [scheduled(pool, 0), scheduled(pool, 1)]
    for batch in loader:
        assert row_keys([batch]) == scheduled(pool, 2)[:50]
        break
    assert row_keys(list(loader)) == scheduled(pool, 3)
    loader.set_epoch(1)
    assert row_keys(list(loader)) == scheduled(pool, 1)
    assert isinstance(loader.sampler, StepSampler)
    loader.sampler.set_epoch(7)
    assert row_keys(list(loader)) == scheduled(pool, 7)


@pytest.mark.parametrize(("workers", "stop"), [((0, 0), 0), ((0, 0), 9), ((0, 2), 5), ((2, 0), 1)])
def test_resumes_with_other_workers(pools: Pools, folder: Path, workers: tuple[int, int], stop: int) -> None:
    pool = pools["cutmix"]
    whole = scheduled(pool, 0) + scheduled(pool, 1) + scheduled(pool, 2)
    first = open_loader(pool, folder, batch_size=27, num_workers=workers[0])
    done = row_keys(list(first))
    iterator = iter(first)
    done += row_keys([next(iterator) for _ in range(stop)])
    # Workers are ahead by now; the state is that of what was yielded.
    state = json.loads(json.dumps(first.state_dict()))
    second = open_loader(pool, folder, batch_size=27, num_workers=workers[1])
    second.load_state_dict(state)
    assert (done + row_keys([*second, *second]))[: len(whole)] == whole


@pytest.mark.parametrize("drop_last", [False, True])
def test_after_the_last_batch_comes_the_next_epoch(pools: Pools, folder: Path, drop_last: bool) -> None:
    options: dict[str, Any] = {"batch_size": 60, "drop_last": drop_last}
    first, resumed = (open_loader(pools["none"], folder, **options) for _ in range(2))
    iterator = iter(first)
    for _ in range(len(first)):
        assert first.state_dict()["epoch"] == 0
        next(iterator)
    state = first.state_dict()
    assert (state["epoch"], state["done"]) == (1, 0)
    resumed.load_state_dict(state)
    assert row_keys([next(iter(resumed))]) == scheduled(pools["none"], 1)[:60]


def test_memory_of_batches_is_used_again_unless_they_are_kept(pools: Pools, folder: Path) -> None:
    addresses = []
    for batch in open_loader(pools["none"], folder, batch_size=BATCH):
        addresses.append(batch.images.data_ptr())
        del batch
    assert len(set(addresses)) <= 2
    kept, rows = [], []
    for batch in open_loader(pools["cutmix"], folder, batch_size=16):
        # Views of a batch keep its memory, as the batch itself does.
        kept.append(batch.images[::5])
        rows.append(batch.images[::5].clone())
        del batch
    assert all(torch.equal(held, row) for held, row in zip(kept, rows, strict=True))


def test_temperature_of_each_epoch(pools: Pools, folder: Path, tmp_path: Path) -> None:
    def falling(epoch: int) -> float:
        return 20.0 * 0.7**epoch

    plain, soft = open_loader(pools["none"], folder), open_loader(pools["none"], folder, temperature=falling)
    for epoch in (0, 1, 5):
        plain.set_epoch(epoch)
        soft.set_epoch(epoch)
        for stored, softened in zip(plain, soft, strict=True):
            assert torch.equal(softened.labels, torch.softmax(stored.labels / falling(epoch), dim=1))
    with pytest.raises(InvalidArgumentError, match="temperature is out of range"):
        next(iter(open_loader(pools["none"], folder, temperature=lambda epoch: -1.0)))
    pool = build(tmp_path / "p", folder, label_kind="probabilities", batch_size=BATCH)
    first, again = (next(iter(open_loader(pool, folder, temperature=t))) for t in (None, 1.0))
    torch.testing.assert_close(first.labels.sum(dim=1), torch.ones(len(first.labels)), atol=0.01, rtol=0)
    torch.testing.assert_close(again.labels, first.labels, atol=0.01, rtol=0)


@pytest.mark.parametrize("batch_size", [None, 30])
def test_batches_come_in_the_form_a_trainer_wants(pools: Pools, folder: Path, batch_size: int | None) -> None:
    loaders = [
        open_loader(pools["cutmix"], folder, batch_size=batch_size, transform=form)
        for form in (None, PoolBatch._asdict, lambda batch: (batch.images, batch.labels))
    ]
    for batch, named, pair in zip(*loaders, strict=True):
        assert isinstance(batch, PoolBatch)
        assert list(named) == list(PoolBatch._fields)
        assert all(torch.equal(named[name], getattr(batch, name)) for name in named)
        assert type(pair) is tuple
        assert torch.equal(pair[0], batch.images)
        assert torch.equal(pair[1], batch.labels)


def test_normalisation_can_be_given_and_must_be_known(folder: Path, tmp_path: Path) -> None:
    pool = build(tmp_path / "pool", folder, "none", teachers=())
    with pytest.raises(InvalidArgumentError, match=r"normalisation is not known.*give both mean and std"):
        pool_loader(pool, folder)
    batch = next(iter(pool_loader(pool, folder, normalise=((0, 0, 0), (1 / 255, 1 / 255, 1 / 255)))))
    assert 200 < float(batch.images.max()) <= 255.01


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", ["cutmix", "mixup"])
def test_whole_label_batches(pools: Pools, folder: Path, kind: str, num_workers: int) -> None:
    pool = pools[kind]
    loader = open_loader(pool, folder, normalise=False, sampling="stored", num_workers=num_workers)
    store = ImageStore(FolderImages(folder, pool.images))
    assert len(loader) == PER_EPOCH
    for key, batch in zip(pool.keys, loader, strict=False):
        assert {tuple(row) for row in batch.keys[:, :2].tolist()} == {key}
        assert batch.images.dtype == (torch.uint8 if kind == "cutmix" else torch.float32)
        expected = apply_views(pool.read_views(key), store, pool.header.augmentation)
        assert torch.equal(batch.images.float(), expected)
        np.testing.assert_array_equal(batch.labels.numpy(), pool.read_labels(key, dtype=np.float32))
    by_row = open_loader(pool, folder, batch_size=5, sampling="stored")
    with pytest.raises(InvalidArgumentError, match="field 'unit' differs"):
        by_row.load_state_dict(loader.state_dict())


@pytest.mark.parametrize(
    "options",
    [{"num_workers": 2, "cache_directory": "cache"}, {"num_workers": 1, "multiprocessing_context": "spawn"}],
    ids=["cache", "spawned"],
)
def test_workers_and_cache(pools: Pools, folder: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    if "cache_directory" in options:
        options = {**options, "cache_directory": tmp_path}
    pool = pools["mixup"]
    plain = [batch.images.clone() for batch in open_loader(pool, folder, batches_per_epoch=15)]
    assert sum(map(len, plain)) > int(pool.index.rows.sum()), "an epoch may be longer than the pool"
    torch.manual_seed(1)
    before = torch.get_rng_state()
    for _ in range(2 if "cache_directory" in options else 1):
        found = [batch.images.clone() for batch in open_loader(pool, folder, batches_per_epoch=15, **options)]
        assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))
    assert torch.equal(torch.get_rng_state(), before), "the global generator is left alone"
    assert bool(list(tmp_path.glob("*.pixels"))) == ("cache_directory" in options)


def test_states_of_other_runs_are_refused(pools: Pools, folder: Path) -> None:
    state = open_loader(pools["none"], folder).state_dict()
    for options, field in (
        ({"seed": 1}, "seed"),
        ({"sampling": "stored"}, "sampling"),
        ({"batches_per_epoch": 2}, "batches_per_epoch"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"a different run: field '{field}' differs"):
            open_loader(pools["none"], folder, **options).load_state_dict(state)
    with pytest.raises(InvalidArgumentError, match="field 'pool' differs"):
        open_loader(pools["cutmix"], folder).load_state_dict(state)


def test_a_second_iteration_ends_the_first(pools: Pools, folder: Path) -> None:
    loader = open_loader(pools["none"], folder, batch_size=10)
    first = iter(loader)
    next(first)
    second = iter(loader)
    assert row_keys([next(second)]) == scheduled(pools["none"], 1)[:10]
    with pytest.raises(InvalidArgumentError, match="this iteration ended"):
        next(first)
    assert row_keys([next(second)]) == scheduled(pools["none"], 1)[10:20]


@pytest.mark.parametrize("read", [0, 1, 4])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_pickled_loader_goes_on_where_it_was(tmp_path: Path, read: int, num_workers: int) -> None:
    """Before an epoch, within it, and after it (an epoch has 4 steps)."""
    folder = write_images(tmp_path / "images", 16)
    pool = build(tmp_path / "pool", folder, batch_size=8)
    loader = pool_loader(pool, folder, batch_size=4, num_workers=num_workers)
    batches = iter(loader)
    for _ in range(read):
        next(batches)
    if read == 4:
        assert next(batches, None) is None
    copy = pickle.loads(pickle.dumps(loader))
    expected = list(loader if read in (0, 4) else batches)
    found = list(copy)
    assert len(found) == len(expected) == (4 if read in (0, 4) else 3)
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(part, twin) for part, twin in zip(ours, theirs, strict=True))
    labels = label_loader(pool)
    next(iter(labels))
    assert len(list(pickle.loads(pickle.dumps(labels)))) == 1


def test_labels_decode_to_the_same_bits_as_the_reader(folder: Path, tmp_path: Path) -> None:
    for codec in ("f16", "f16:plain", "f32", "int8", "int6", "int4", "topk:3"):
        pool = build(tmp_path / codec, folder, codec=codec, epochs=1, batch_size=BATCH)
        for batch in label_loader(pool, sampling="stored"):
            expected = pool.read_labels(batch.key, dtype=np.float32)
            np.testing.assert_array_equal(batch.labels().numpy(), expected)


@pytest.mark.parametrize("label_kind", ["logits", "probabilities"])
def test_transform_coded_labels(folder: Path, tmp_path: Path, label_kind: str) -> None:
    plain = build(tmp_path / "plain", folder, batch_size=BATCH, label_kind=label_kind)
    encode_pool(plain, tmp_path / "klt", EncodeSettings(codec="klt", fidelity=0.5))
    pool = PoolReader(tmp_path / "klt")
    for batch in label_loader(pool, sampling="stored", batches_per_epoch=len(pool)):
        assert batch.parts[0].shape[0] == batch.views.rows
        expected = torch.from_numpy(pool.read_labels(batch.key, dtype=np.float32).copy())
        torch.testing.assert_close(batch.labels(), expected, atol=1e-4, rtol=1e-4)
    rows = next(iter(pool_loader(pool, folder, batch_size=5, sampling="stored")))
    stored = torch.from_numpy(pool.read_labels((0, 0), dtype=np.float32)[:5].copy())
    torch.testing.assert_close(rows.labels, stored, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_label_batches_come_whole_and_undecoded(pools: Pools, num_workers: int) -> None:
    pool = pools["cutmix"]
    options: dict[str, Any] = {"seed": 2, "batches_per_epoch": 7, "num_workers": num_workers}
    shares = []
    for rank in range(2):
        loader = label_loader(pool, rank=rank, world_size=2, **options)
        assert len(loader) == 3
        shares.append([batch.key for batch in loader])
    schedule = Schedule.of(pool, sampling="shuffled", seed=2, batches_per_epoch=7)
    expected = [pool.index.key(place) for place in schedule.places(0).tolist()]
    # Step s of process r is label batch 2 s + r; the seventh cannot be shared out.
    assert [key for step in zip(*shares, strict=True) for key in step] == expected[:6]
    loader = label_loader(pool, **options)
    batch = next(iter(loader))
    assert (batch.targets == pool.images.classes[batch.views.images]).all()
    resumed = label_loader(pool, **options)
    resumed.load_state_dict(loader.state_dict())
    assert [b.key for b in resumed] == expected[1:]


def assert_same_epochs(ours: PoolLoader, theirs: PoolLoader) -> None:
    for epoch in range(2):
        ours.set_epoch(epoch)
        theirs.set_epoch(epoch)
        for one, other in zip(ours, theirs, strict=True):
            assert all(torch.equal(part, twin) for part, twin in zip(one, other, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_views_and_packed_images(pools: Pools, folder: Path, tmp_path: Path, kind: str) -> None:
    stored = pools[kind]
    encode_pool(stored, tmp_path / "drawn", EncodeSettings(views="drawn"))
    merge_pools([stored], tmp_path / "packed", images=find_images(stored, folder))
    drawn, packed = PoolReader(tmp_path / "drawn"), PoolReader(tmp_path / "packed")
    assert drawn.manifest.views == "drawn"
    for sampling, workers in zip(SAMPLINGS, (0, 2, 0, 0, 0), strict=False):
        options: dict[str, Any] = {"batch_size": 29, "seed": 3, "sampling": sampling}
        twin = open_loader(stored, folder, **options)
        assert_same_epochs(open_loader(drawn, folder, num_workers=workers, **options), twin)
        assert_same_epochs(
            pool_loader(packed, batches_per_epoch=PER_EPOCH, num_workers=workers, **options), twin
        )
        if kind != "cutmix":
            break


def test_packed_images_are_pickled_and_share_the_cache(pools: Pools, folder: Path, tmp_path: Path) -> None:
    packed, cache = tmp_path / "packed", tmp_path / "cache"
    merge_pools([pools["none"]], packed, images=find_images(pools["none"], folder))
    with PoolReader(packed) as pool:
        images = find_images(pool)
        again = pickle.loads(pickle.dumps(images))  # our own
        assert [again.read(row) for row in (3, 29)] == [images.read(row) for row in (3, 29)]
    list(pool_loader(packed, folder, cache_directory=cache))
    before = sorted(cache.iterdir())
    list(pool_loader(packed, cache_directory=cache))
    assert sorted(cache.iterdir()) == before
    flip_bit(packed / pool.manifest.files_of("packed")[0].path, 2000, bit=2)
    with pytest.raises(PoolCorruptError, match="packed/"):
        list(pool_loader(packed))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_other_images_than_the_labelled_are_named(tmp_path: Path, num_workers: int) -> None:
    folder = write_images(tmp_path / "images", 8)
    pool = build(tmp_path / "pool", folder, batch_size=8)
    victim = folder / pool.images.paths[3]
    victim.write_bytes((folder / pool.images.paths[4]).read_bytes())
    digest = pool.images.digests[3]
    assert digest is not None
    with pytest.raises(ImageMismatchError, match=f"{victim.name}.*expected digest {digest.hex()}"):
        list(pool_loader(pool, folder, num_workers=num_workers))
    with pytest.raises(ImageMismatchError, match="has changed"):
        check_images(find_images(pool, folder))
    victim.unlink()
    with pytest.raises(ImageMismatchError, match="missing"):
        list(pool_loader(pool, folder, num_workers=num_workers))
    with pytest.raises(ImageReadError, match="does not exist"):
        pool_loader(pool, tmp_path / "nowhere")
    with pytest.raises(InvalidArgumentError, match="--images"):
        pool_loader(pool)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch size is out of range"),
        ({"temperature": 0.0}, "temperature is out of range"),
        ({"num_workers": -1}, "number of workers"),
        ({"batches_per_epoch": 0}, "number of batches in an epoch is out of range"),
        ({"batches_per_epoch": 10**12}, "number of batches in an epoch is out of range"),
        ({"sampling": "luck"}, "unknown sampling"),
        ({"rank": 0}, "give rank and world_size together"),
        ({"rank": 2, "world_size": 2}, "rank is out of range"),
        ({"world_size": 10_000, "rank": 0}, "too short for the number of processes"),
    ],
)
def test_bad_arguments_are_refused(pools: Pools, folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        list(open_loader(pools["none"], folder, **options))


@pytest.mark.parametrize("field", ["epoch", "done", "steps"])
@pytest.mark.parametrize("value", [-1, 10**30, 1.5, True, None, "3"])
def test_positions_that_cannot_be_are_refused(tmp_path: Path, field: str, value: Any) -> None:
    folder = write_images(tmp_path / "images", 8)
    loader = pool_loader(build(tmp_path / "pool", folder, batch_size=8), folder)
    with pytest.raises(InvalidArgumentError, match=f"field '{field}' of the state is wrong"):
        loader.load_state_dict({**loader.state_dict(), field: value})
    with pytest.raises(InvalidArgumentError, match="number of steps is negative"):
        loader.skip_to(0, -1)
    loader.set_epoch(10**30)
    with pytest.raises(InvalidArgumentError, match="epoch is out of range"):
        next(iter(loader))


def test_validation_images_get_the_size_and_normalisation_of_training(pools: Pools, folder: Path) -> None:
    path = folder / pools["none"].images.paths[0]
    loader = open_loader(pools["none"], folder)
    assert (loader.size, loader.mean, loader.std) == (16, MEAN, STD)
    shown = loader.evaluation_transform()(Image.open(path))
    assert shown.shape == next(iter(loader)).images.shape[1:] == (3, 16, 16)
    view = centre_view(decode_image(path.read_bytes(), where=path), (16, 16))
    assert torch.equal(shown, normalise(view.permute(2, 0, 1)[None], MEAN, STD)[0])
    raw = open_loader(pools["none"], folder, normalise=False)
    assert (raw.mean, raw.std) == (None, None)
    transform = pickle.loads(pickle.dumps(loader.evaluation_transform()))
    assert torch.equal(transform(Image.open(path)), shown)
    assert torch.equal(raw.evaluation_transform()(Image.open(path)), view.permute(2, 0, 1).float())


def opened(pool: PoolReader, folder: Path, **options: Any) -> PoolLoader:
    return pool_loader(pool, folder, **{"batches_per_epoch": 6, "sampling": "shuffled", **options})


def shared(pool: PoolReader, folder: Path, world: int, **options: Any) -> list[PoolLoader]:
    return [opened(pool, folder, rank=rank, world_size=world, **options) for rank in range(world)]


def joined(batches: tuple[PoolBatch, ...]) -> PoolBatch:
    return PoolBatch(*(torch.cat(parts) for parts in zip(*batches, strict=True)))


@pytest.mark.parametrize(
    ("kind", "world", "batch_size"),
    [
        ("cutmix", 2, 5),
        ("cutmix", 7, 5),
        ("none", 2, 100),
        ("mixup", 3, 32),
        ("cutout", 3, 32),
        ("patches", 2, 5),
    ],
)
def test_shares_equal_one_process(pools: Pools, folder: Path, kind: str, world: int, batch_size: int) -> None:
    alone = opened(pools[kind], folder, batch_size=batch_size * world)
    ranks = shared(pools[kind], folder, world, batch_size=batch_size, num_workers=0)
    # A last step of fewer rows than processes is left out.
    steps = [step for step in alone if len(step.keys) >= world]
    assert {len(loader) for loader in ranks} == {len(steps)}
    for expected, *parts in zip(steps, *ranks, strict=True):
        rows = len(expected.keys) // world * world
        assert len({len(part.keys) for part in parts}) == 1
        assert all(torch.equal(f, e[:rows]) for f, e in zip(joined(tuple(parts)), expected, strict=True))


def test_a_process_renders_only_its_rows(pools: Pools, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[int] = []
    read = ImageStore.__getitem__

    def counted(store: ImageStore, index: int) -> Any:
        rendered.append(index)
        return read(store, index)

    monkeypatch.setattr(ImageStore, "__getitem__", counted)
    counts = {}
    for kind in ("none", "cutmix"):
        rendered.clear()
        (loader, _) = shared(pools[kind], folder, 2, batch_size=8, sampling="stored", batches_per_epoch=1)
        assert sum(len(batch.keys) for batch in loader) == 16
        counts[kind] = len(rendered)
    views = pools["cutmix"].read_views((0, 0))
    assert views.mix is not None
    own = np.r_[0:8, 16:24]
    assert counts == {"none": 16, "cutmix": len(np.union1d(own, views.mix.partner[own]))}
    assert counts["cutmix"] < views.rows


@pytest.mark.parametrize(("worlds", "batch_size"), [((2, 1), 5), ((2, 3), 24), ((1, 2), 24), ((3, 2), 5)])
def test_resumes_with_more_ranks(
    pools: Pools, folder: Path, worlds: tuple[int, int], batch_size: int
) -> None:
    pool, made = pools["cutmix"], 2
    rows = [row for batch in opened(pool, folder) for row in batch.keys.tolist()]
    first = shared(pool, folder, worlds[0], batch_size=batch_size)
    iterators = [iter(loader) for loader in first]
    seen = [row for _ in range(made) for it in iterators for row in next(it).keys.tolist()]
    state, *others = [loader.state_dict() for loader in first]
    assert all(other == state for other in others)
    assert state["done"] == len(seen) == made * batch_size * worlds[0]
    second = shared(pool, folder, worlds[1], batch_size=batch_size)
    for loader in second:
        loader.load_state_dict(state)
    lengths = {len(loader) for loader in second}
    steps = list(zip(*second, strict=True))
    # Enough for a trainer that counts on from the steps it made before, and for whole epochs.
    assert lengths == {max(made + len(steps), -(-len(rows) // (batch_size * worlds[1])))}
    seen += [row for step in steps for row in joined(step).keys.tolist()]
    assert seen == rows[: len(seen)]
    assert len(rows) - len(seen) < worlds[1]
    assert second[0].state_dict()["epoch"] == 1


def test_rows_too_few_for_more_processes_end_the_epoch(pools: Pools, folder: Path) -> None:
    first = opened(pools["none"], folder, batch_size=9)
    iterator = iter(first)
    total = len(first.dataset)
    for _ in range(total // 9):
        next(iterator)
    state = first.state_dict()
    left = total - state["done"]
    assert 0 < left < 9
    second, expected = (
        opened(pools["none"], folder, batch_size=9, rank=0, world_size=left + 1) for _ in range(2)
    )
    second.load_state_dict(state)
    expected.set_epoch(1)
    assert torch.equal(next(iter(second)).keys, next(iter(expected)).keys)
