import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lpld_labels import PoolReader
from lpld_labels.errors import (
    ImageMismatchError,
    InvalidArgumentError,
    NotAPoolError,
    PoolConflictError,
    PoolCorruptError,
)
from lpld_labels.format.digests import file_digest
from lpld_labels.inspect.check import check_pool
from lpld_labels.pool.packing import Packed, PackedImages, packed_images
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.pool.writer import PoolWriter
from lpld_labels.render.images import FolderImages, check_images, find_images
from lpld_labels.transforms.copy import merge_pools, unpack_images
from lpld_labels.transforms.encode import encode_pool
from lpld_labels.transforms.settings import EncodeSettings, PruneSettings
from tests import independent_reader
from tests.factories import (
    assert_same_views,
    flip_bit,
    grow_pool,
    interrupt_at,
    make_batches,
    make_header,
    make_images,
    prune_pool,
    tree,
    write_pool,
)
from tests.lpld_labels.loader.loader_pools import build

REFUSE = Path(__file__).parents[2] / "golden" / "refuse"
BATCHES = make_batches(3, 4)


@pytest.fixture
def parts(tmp_path: Path) -> list[PoolReader]:
    return [write_pool(tmp_path / f"part{number}", BATCHES[number::3]) for number in range(3)]


def test_merged_pools_are_as_if_written_at_once(tmp_path: Path, parts: list[PoolReader]) -> None:
    done: list[tuple[int, int]] = []
    manifest = merge_pools(parts, tmp_path / "out", progress=lambda d, t: done.append((d, t)))
    assert done == [(number, 12) for number in range(1, 13)]
    assert check_pool(tmp_path / "out").whole
    with write_pool(tmp_path / "direct", BATCHES) as direct:
        assert manifest.content_digest == direct.manifest.content_digest
    with PoolReader(tmp_path / "out") as merged:
        for batch in BATCHES:
            found = merged.read(batch.key)
            assert_same_views(found, batch)
            np.testing.assert_array_equal(found.labels, batch.labels)
    (step,) = manifest.header.lineage
    assert step.operation == "merge"
    digests = [part.manifest.content_digest for part in parts]
    assert [entry["content_digest"] for entry in step.parameters["pools"]] == digests
    assert merge_pools(parts, tmp_path / "out") == manifest
    with pytest.raises(PoolConflictError, match="already here"):
        merge_pools(parts[:2], tmp_path / "out")
    with pytest.raises(PoolConflictError, match=r"two pools contain epoch 0 batch 0.*part0.*part0"):
        merge_pools([*parts, parts[0]], tmp_path / "twice")
    assert not (tmp_path / "twice").exists()


@pytest.mark.parametrize("field", ["seed", "images_digest", "codec.name", "teachers"])
def test_pools_that_differ_are_not_merged(tmp_path: Path, parts: list[PoolReader], field: str) -> None:
    others: dict[str, dict[str, Any]] = {"seed": {"seed": 1}, "teachers": {"teachers": ()}}
    header = make_header(**others.get(field, {}))
    images = make_images(49) if field == "images_digest" else None
    codec = "int8" if field == "codec.name" else "f16"
    other = write_pool(tmp_path / "other", [], header=header, images=images, codec=codec)
    with pytest.raises(PoolConflictError, match=rf"cannot be merged: field '{field}' differs.*same images"):
        merge_pools([parts[0], other], tmp_path / "out")


def images_of(pool: PoolReader) -> PackedImages:
    found = packed_images(pool)
    assert found is not None
    return found


def test_packed_images_are_read_byte_for_byte(packed: PoolReader, folder: Path) -> None:
    assert check_pool(packed.location).problems == ()
    their_images = independent_reader.verify(packed.location).packed_images()
    for row in (0, 17, 29):
        expected = (folder / packed.images.paths[row]).read_bytes()
        assert images_of(packed).read(row) == expected == their_images[row]
    # A given folder is used instead.
    Image.new("RGB", (20, 20)).save(folder / packed.images.paths[4])
    check_images(find_images(packed))
    with pytest.raises(ImageMismatchError, match=r"image 4 has changed"):
        check_images(find_images(packed, folder))


def test_packing_changes_no_other_file(packed: PoolReader, plain: PoolReader, folder: Path) -> None:
    before, after = plain.manifest, packed.manifest
    assert after.content_digest == before.content_digest
    assert after.header == before.header
    assert [entry for entry in after.files if entry.role != "packed"] == list(before.files)
    assert len(after.files_of("packed")) > 2
    assert after.components["packed"] == sum(entry.bytes for entry in after.files_of("packed"))
    for entry in after.files:
        assert file_digest(Path(packed.location, entry.path)) == entry.digest
    assert not Path(f"{packed.location}.partial").exists()
    written = Path(packed.location, "pool.json").stat().st_mtime_ns
    assert merge_pools([plain], packed.location, images=find_images(plain, folder)) == after
    assert Path(packed.location, "pool.json").stat().st_mtime_ns == written


def test_absent_or_changed_images_are_not_packed(plain: PoolReader, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(InvalidArgumentError, match=r"does not contain its images.*--images"):
        find_images(plain)
    Image.new("RGB", (20, 20)).save(folder / plain.images.paths[7])
    with pytest.raises(ImageMismatchError, match=r"image 7 has changed"):
        merge_pools([plain], out, images=find_images(plain, folder))
    with pytest.raises(NotAPoolError):
        PoolReader(out)
    unknown = replace(plain.images, digests=[*plain.images.digests[:3], None, *plain.images.digests[4:]])
    out.mkdir()
    with pytest.raises(ImageMismatchError, match=r"image 3 cannot be packed.*expected a digest"):
        Packed(FolderImages(folder, unknown))(out, within=tmp_path)


def test_damaged_or_other_images_inside_are_refused(packed: PoolReader) -> None:
    file = packed.manifest.files_of("packed")[0]
    flip_bit(Path(packed.location, file.path), file.bytes // 8)
    with pytest.raises(PoolCorruptError, match="packed/"):
        check_images(find_images(packed))
    assert [problem.file for problem in check_pool(packed.location).problems] == [file.path]
    # Another image under right checksums.
    with PoolReader(REFUSE / "packed-bytes") as pool:
        images = images_of(pool)
        with pytest.raises(PoolCorruptError, match=r"packed/.*: image \d+ differs from the labelled"):
            [images.read(row) for row in range(len(pool.images))]


@pytest.mark.parametrize("kind", ["prune and grow", "encode", "prune and encode", "merge"])
def test_pools_made_of_a_packed_pool_keep_the_images(kind: str, packed: PoolReader, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if kind == "merge":
        halves = []
        for number, keys in enumerate((packed.keys[::2], packed.keys[1::2])):
            half = tmp_path / f"half{number}"
            with PoolWriter(half, header=packed.header, images=packed.images) as writer:
                writer.extend(packed.iterate(keys))
                writer.commit()
            halves.append(PoolReader(half))
        merge_pools([halves[1]], tmp_path / "packed1", images=find_images(packed))
        manifest = merge_pools([halves[0], PoolReader(tmp_path / "packed1")], out)
    elif kind == "encode":
        manifest = encode_pool(packed, out, EncodeSettings(codec="int8")).manifest
    else:
        manifest = prune_pool(packed, out, PruneSettings(ratio=2))
    if kind == "prune and grow":
        before, manifest = manifest, grow_pool(out, list(packed.iterate()))
        assert manifest.counts.batches > before.counts.batches
    elif kind == "prune and encode":
        with PoolReader(out) as pruned:
            out = tmp_path / "out2"
            manifest = encode_pool(pruned, out, EncodeSettings(codec="int8")).manifest
    assert manifest.files_of("packed") == packed.manifest.files_of("packed")
    assert check_pool(out).problems == ()
    with PoolReader(out) as pool:
        check_images(find_images(pool))


def test_a_budget_counts_the_images(folder: Path, tmp_path: Path) -> None:
    with build(tmp_path / "long", folder, epochs=60) as pool:
        merge_pools([pool], tmp_path / "long_packed", images=find_images(pool, folder))
    packed = PoolReader(tmp_path / "long_packed")
    budget = pool_bytes(packed.manifest) * 9 // 10
    manifest = prune_pool(packed, tmp_path / "out", PruneSettings(budget=budget))
    assert budget * 0.9 < pool_bytes(manifest) <= budget
    assert manifest.components["packed"] == packed.manifest.components["packed"]
    with pytest.raises(InvalidArgumentError, match="budget"):
        prune_pool(packed, tmp_path / "none", PruneSettings(budget=manifest.components["packed"]))


def test_interrupted_packing_resumes(
    plain: PoolReader, folder: Path, packed: PoolReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    read = FolderImages.read
    asked: list[int] = []
    interrupted = True

    def failing(self: FolderImages, row: int) -> bytes:
        asked.append(row)
        if interrupted and asked.count(25) == 2:
            raise KeyboardInterrupt
        return read(self, row)

    monkeypatch.setattr(FolderImages, "read", failing)
    with pytest.raises(KeyboardInterrupt):
        merge_pools([plain], out, images=find_images(plain, folder))
    assert not out.exists()
    done = sorted((tmp_path / "out.partial" / "pool" / "packed").iterdir())
    assert done
    before = {path.name: path.stat().st_ino for path in done}
    interrupted = False
    asked.clear()
    # One that was damaged meanwhile is written again.
    done[0].write_bytes(done[0].read_bytes()[:-1] + b"x")
    manifest = merge_pools([plain], out, images=find_images(plain, folder))
    assert manifest.dump() == packed.manifest.dump()
    after = {path.name: path.stat().st_ino for path in (out / "packed").iterdir()}
    kept = [name for name, inode in before.items() if after[name] == inode]
    assert kept == [path.name for path in done[1:]]
    assert 30 < len(asked) < 60


def test_an_interrupted_unpack_resumes(packed: PoolReader, folder: Path, tmp_path: Path) -> None:
    out, work = tmp_path / "again", tmp_path / "again.partial"
    with pytest.raises(KeyboardInterrupt):
        unpack_images(images_of(packed), out, progress=interrupt_at(15))
    assert not out.exists()
    half = sorted((work / "pool").rglob("*.png"))
    half[0].write_bytes(b"half")
    assert unpack_images(images_of(packed), out) <= 30 - len(half) + 1
    assert tree(out) == tree(folder)
    assert not work.exists()


def test_unpacking_replaces_no_files(packed: PoolReader, folder: Path, tmp_path: Path) -> None:
    out, images = tmp_path / "again", images_of(packed)
    assert unpack_images(images, out) == 30
    assert tree(out) == tree(folder)
    assert unpack_images(images, out) == 0
    for name in (images.table.paths[0], "class0/notes.txt"):
        (out / name).write_bytes(b"mine")
        before = tree(out)
        with pytest.raises(PoolConflictError, match="a file or folder is already here"):
            unpack_images(images, out)
        assert tree(out) == before
        shutil.copytree(folder, out, dirs_exist_ok=True)
    out, elsewhere = tmp_path / "linked", tmp_path / "elsewhere"
    elsewhere.mkdir()
    with pytest.raises(KeyboardInterrupt):
        unpack_images(images, out, progress=interrupt_at(1))
    place = tmp_path / "linked.partial" / "pool" / "class2"
    shutil.rmtree(place, ignore_errors=True)
    place.symlink_to(elsewhere)
    with pytest.raises(PoolConflictError, match="link"):
        unpack_images(images, out)
    assert not any(elsewhere.iterdir())
