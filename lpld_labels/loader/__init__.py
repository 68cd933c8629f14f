"""Pools as stock `torch.utils.data` loaders.

`pool_loader` yields training batches (images, labels, targets), `label_loader` whole label batches
without images; the loaders of `lpld_labels.loader.authors` are for the authors' training scripts.

    from lpld_labels.loader import pool_loader

    loader = pool_loader("pool", "images", batch_size=64, num_workers=4)
    for epoch in range(300):
        for batch in loader:
            loss = distillation_loss(model(batch.images), batch.labels)
    loader.state_dict()      # resume at the next batch with load_state_dict

Words used in this package: a label batch's *place* is where it is in the pool's index, a view's *slot*
its row in its label batch; a *position* is where training is (epoch, rows done, steps made); a *step* is
one batch of every process; a *buffer* is shared memory for the pixels of one label batch.

    settings    what may be asked for       sampling   (seed, epoch) -> places
    processes   who shares the epochs       share      rows of an epoch -> steps, and who takes which
    cursor      positions and states        dataset    one label batch, prepared (in workers)
    streaming   the workers                 assembly   label batches -> training batches
    steps       batches by step             streaming_loader   the DataLoader that trainers see
"""

from __future__ import annotations

from lpld_labels.loader.authors import (
    fkd_loader,
    gvbsm_loader,
    lpld_loader,
    lpqld_loader,
    sre2l_loader,
)
from lpld_labels.loader.batch import PoolBatch, UndecodedBatch
from lpld_labels.loader.decoders import TorchDecoder
from lpld_labels.loader.label_loader import LabelLoader, label_loader
from lpld_labels.loader.pool_loader import PoolLoader, pool_loader

__all__ = [
    "LabelLoader",
    "PoolBatch",
    "PoolLoader",
    "TorchDecoder",
    "UndecodedBatch",
    "fkd_loader",
    "gvbsm_loader",
    "label_loader",
    "lpld_loader",
    "lpqld_loader",
    "pool_loader",
    "sre2l_loader",
]
