"""Pools that carry their images: what goes in comes out, whatever is done to the pool in between."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

from lpld_labels import PoolReader
from lpld_labels.errors import (
    ImageMismatchError,
    InvalidArgumentError,
    PoolConflictError,
    PoolCorruptError,
    PoolWriteError,
)
from lpld_labels.format.digests import file_digest
from lpld_labels.inspect.check import check_pool
from lpld_labels.io.parquet_files import file_entry, footer_of, page_settings
from lpld_labels.pool import packing
from lpld_labels.pool.packing import Packed, packed_images
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.pool.writer import PoolWriter
from lpld_labels.render.images import FolderImages, check_images, find_images
from lpld_labels.transforms.copy import merge_pools, unpack_images
from lpld_labels.transforms.encode import encode_pool
from lpld_labels.transforms.prune import prune_pool
from lpld_labels.transforms.settings import EncodeSettings, PruneSettings
from tests import independent_reader
from tests.factories import grow_pool
from tests.lpld_labels.loader.loader_pools import build
from tests.lpld_labels.transforms.conftest import files_below


def test_what_is_packed_is_unpacked_byte_for_byte(packed: PoolReader, folder: Path, tmp_path: Path) -> None:
    images = packed_images(packed)
    assert images is not None
    assert unpack_images(images, tmp_path / "again") == 30
    assert files_below(tmp_path / "again") == files_below(folder)
    assert unpack_images(images, tmp_path / "again") == 0


def test_packing_changes_no_label_and_no_other_file(packed: PoolReader, plain: PoolReader) -> None:
    before, after = plain.manifest, packed.manifest
    assert after.content_digest == before.content_digest
    assert after.header == before.header
    assert [entry for entry in after.files if entry.role != "packed"] == list(before.files)
    assert len(after.files_of("packed")) > 2
    assert after.components["packed"] == sum(entry.bytes for entry in after.files_of("packed"))
    for entry in after.files:
        assert file_digest(Path(packed.location, entry.path)) == entry.digest
    assert not Path(f"{packed.location}.partial").exists()


def test_our_checks_and_the_other_reader_find_it_whole(packed: PoolReader, folder: Path) -> None:
    assert check_pool(packed.location).problems == ()
    their_images = independent_reader.verify(packed.location).packed_images()
    ours = packed_images(packed)
    assert ours is not None
    for row in (0, 17, 29):
        expected = (folder / packed.images.paths[row]).read_bytes()
        assert ours.read(row) == expected == their_images[row]


def test_a_folder_that_is_given_wins(packed: PoolReader, folder: Path) -> None:
    victim = folder / packed.images.paths[4]
    Image.new("RGB", (20, 20)).save(victim)
    check_images(find_images(packed))
    with pytest.raises(ImageMismatchError, match=r"image 4 has changed"):
        check_images(find_images(packed, folder))


def test_without_images_the_folder_is_asked_for(plain: PoolReader) -> None:
    with pytest.raises(InvalidArgumentError, match=r"does not carry its images.*--images"):
        find_images(plain)


def test_a_changed_image_is_not_packed(plain: PoolReader, folder: Path, tmp_path: Path) -> None:
    Image.new("RGB", (20, 20)).save(folder / plain.images.paths[7])
    with pytest.raises(ImageMismatchError, match=r"image 7 has changed"):
        merge_pools([plain], tmp_path / "out", images=find_images(plain, folder))
    with pytest.raises(Exception, match="not a label pool"):
        PoolReader(tmp_path / "out")


def test_images_of_unknown_contents_are_not_packed(plain: PoolReader, folder: Path, tmp_path: Path) -> None:
    unknown = replace(plain.images, digests=[*plain.images.digests[:3], None, *plain.images.digests[4:]])
    (tmp_path / "out").mkdir()
    with pytest.raises(ImageMismatchError, match=r"image 3 cannot be packed.*expected a digest"):
        Packed(FolderImages(folder, unknown))(tmp_path / "out", within=tmp_path)


def rewrite_first_image(pool: Path, data: bytes) -> None:
    """Put other bytes into the first packed file, with checksums and manifest as if it had been meant."""
    document = json.loads((pool / "pool.json").read_text())
    entry = next(entry for entry in document["files"] if entry["role"] == "packed")
    path = pool / entry["path"]
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[0]["image"]["bytes"] = data
    changed = type(table).from_pylist(rows, schema=table.schema)
    pq.write_table(changed, path, compression="none", use_dictionary=False, **page_settings())
    size = path.stat().st_size
    document["components"]["packed"] += size - entry["bytes"]
    entry |= asdict(file_entry(entry["path"], "packed", size, file_digest(path), footer_of(path)))
    (pool / "pool.json").write_text(json.dumps(document))


def test_a_changed_image_inside_is_refused(packed: PoolReader, folder: Path) -> None:
    """Even where every checksum says it is right: the image table knows better."""
    rewrite_first_image(Path(packed.location), (folder / packed.images.paths[1]).read_bytes())
    with PoolReader(packed.location) as pool:
        images = packed_images(pool)
        assert images is not None
        with pytest.raises(PoolCorruptError, match=r"packed/00000000-.*class0/0000.png: image 0 is not the"):
            images.read(0)
        assert images.read(1) == (folder / packed.images.paths[1]).read_bytes()
    (problem,) = check_pool(packed.location).problems
    assert problem.file.startswith("packed/")
    assert "image 0 is not the labelled one" in problem.message


def test_a_flipped_byte_inside_is_refused(packed: PoolReader) -> None:
    path = Path(packed.location, packed.manifest.files_of("packed")[0].path)
    data = bytearray(path.read_bytes())
    data[len(data) // 8] ^= 1
    path.write_bytes(data)
    with pytest.raises(PoolCorruptError, match="packed/"):
        check_images(find_images(packed))
    assert [problem.file for problem in check_pool(packed.location).problems] == [
        packed.manifest.files_of("packed")[0].path
    ]


@pytest.mark.parametrize("kind", ["prune", "encode", "prune and encode", "merge"])
def test_pools_made_of_it_keep_the_images(kind: str, packed: PoolReader, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if kind == "merge":
        halves = []
        for number, keys in enumerate((packed.keys[::2], packed.keys[1::2])):
            half = tmp_path / f"half{number}"
            with PoolWriter(half, header=packed.header, images=packed.images) as writer:
                writer.extend(packed.iterate(keys))
                writer.commit()
            halves.append(PoolReader(half))
        merge_pools([halves[1]], tmp_path / "half1packed", images=find_images(packed))
        manifest = merge_pools([halves[0], PoolReader(tmp_path / "half1packed")], out)
    elif kind == "encode":
        manifest = encode_pool(packed, out, EncodeSettings(codec="int8")).manifest
    else:
        manifest = prune_pool(packed, out, PruneSettings(ratio=2))
    if kind == "prune and encode":
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


def test_a_pool_that_grows_keeps_its_images(packed: PoolReader, tmp_path: Path) -> None:
    out = tmp_path / "small"
    manifest = prune_pool(packed, out, PruneSettings(ratio=2))
    grown = grow_pool(out, list(packed.iterate()))
    assert grown.counts.batches > manifest.counts.batches
    assert grown.files_of("packed") == packed.manifest.files_of("packed")
    assert check_pool(out).problems == ()


# Interruptions and outputs


def test_interrupted_packing_goes_on(
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
    done = sorted((tmp_path / f"{out.name}.partial" / "pool" / "packed").iterdir())
    assert done
    before = {path.name: path.stat().st_ino for path in done}
    interrupted = False
    asked.clear()
    # One that was damaged meanwhile is written again.
    done[0].write_bytes(done[0].read_bytes()[:-1] + b"x")
    manifest = merge_pools([plain], out, images=find_images(plain, folder))
    assert manifest.dump() == packed.manifest.dump()
    after = {path.name: path.stat().st_ino for path in sorted((out / "packed").iterdir())}
    kept = [name for name, inode in before.items() if after[name] == inode]
    assert kept == [path.name for path in done[1:]]
    assert 30 < len(asked) < 60


def test_packing_again_finds_its_own_pool(plain: PoolReader, folder: Path, packed: PoolReader) -> None:
    before = Path(packed.location, "pool.json").stat().st_mtime_ns
    manifest = merge_pools([plain], packed.location, images=find_images(plain, folder))
    assert manifest == packed.manifest
    assert Path(packed.location, "pool.json").stat().st_mtime_ns == before


def test_another_pool_is_only_replaced_on_demand(plain: PoolReader, folder: Path, tmp_path: Path) -> None:
    build(tmp_path / "other", folder, seed=6).close()
    images = find_images(plain, folder)
    with pytest.raises(PoolConflictError, match="--overwrite"):
        merge_pools([plain], tmp_path / "other", images=images)
    manifest = merge_pools([plain], tmp_path / "other", images=images, overwrite=True)
    assert manifest.content_digest == plain.manifest.content_digest
    with pytest.raises(InvalidArgumentError, match="the output is the same as an input"):
        merge_pools([plain], plain.location, images=images, overwrite=True)


def test_a_full_disk_leaves_no_pool(
    plain: PoolReader, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(packing, "move", full)
        with pytest.raises(PoolWriteError, match="disk is full"):
            merge_pools([plain], tmp_path / "out", images=find_images(plain, folder))
    assert not (tmp_path / "out" / "pool.json").exists()
    merge_pools([plain], tmp_path / "out", images=find_images(plain, folder))
    assert check_pool(tmp_path / "out").problems == ()
