from pathlib import Path

from lpld_labels import PoolReader
from lpld_labels.loader import label_loader
from tests.factories import make_batches, write_pool
from tests.servers.files import FileServer


def test_a_remote_reader_that_was_opened_before_gets_a_cache(tmp_path: Path, http: FileServer) -> None:
    """Without one, prefetching the endless schedule of a small pool never came to an end."""
    write_pool(tmp_path / "pool", make_batches(2, 3)).close()
    with PoolReader(http.add(tmp_path / "pool", "pool")) as reader:
        loader = label_loader(reader, cache_directory=tmp_path / "cache")
        assert len(list(loader)) == len(loader)
    assert any((tmp_path / "cache").rglob("*"))
