"""Pools as stock `torch.utils.data` loaders.

`pool_loader` yields training batches of images, labels and targets. `label_loader` yields whole label batches
without images. `PoolDataset` has single views by number.

    from lpld_labels.loader import pool_loader

    loader = pool_loader("pool", "images", batch_size=64, num_workers=4)
    for epoch in range(300):
        for batch in loader:
            loss = distillation_loss(model(batch.images), batch.labels)
    loader.state_dict()      # resume at the next batch with load_state_dict

Terms: a label batch's *place* is its number in the pool's index; a view's *slot* is its row in its label
batch; a *position* is (epoch, rows done, steps done); a *step* is one batch on every process; a *buffer* is
shared memory for the pixels of one label batch.

    schedule       which rows each process trains on     workers        label batches, prepared by workers
    batches        label batches -> training batches     pool_loader    the DataLoader that trainers use
    dataset        views by number
"""

from __future__ import annotations

from lpld_labels.loader.batches import PoolBatch, UndecodedBatch
from lpld_labels.loader.dataset import PoolDataset
from lpld_labels.loader.pool_loader import PoolLoader, label_loader, pool_loader

__all__ = ["PoolBatch", "PoolDataset", "PoolLoader", "UndecodedBatch", "label_loader", "pool_loader"]
