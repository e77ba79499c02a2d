"""The broadcast of weights from the trainer to vLLM's engines, without a GPU: through a key-value store.

On GPUs OpenRLHF's own broadcast, by NCCL or CUDA IPC, stays in place; ``patches`` puts this in the place of NCCL.
"""

from __future__ import annotations

from typing import Any

NEVER = 10**9  # seconds: no tensor is deleted before a slow engine has read it


class StoreBroadcast:
    """Replaces vLLM's NCCL communicator: tensors are broadcast through a key-value store."""

    def __init__(self, group: Any) -> None:
        self.group = group

    def broadcast(self, tensor: Any, src: int, stream: Any = None) -> None:
        """Sends ``tensor`` from rank ``src``, or overwrites it with what that rank sent."""
        import torch

        if self.group.rank == src:
            self._forget()
        here = tensor.detach().cpu()
        bits = here.contiguous().view(torch.uint8).numpy() if self.group.rank == src else None  # NumPy has no bfloat16
        sent = self.group.broadcast_obj(bits, src)
        if self.group.rank != src:
            tensor.copy_(torch.from_numpy(sent.copy()).view(tensor.dtype).view(tensor.shape))

    def _forget(self) -> None:
        """Deletes what was sent before: OpenRLHF waits until all engines have read a tensor before it sends the next.

        The store would keep it for a time, and the weights of a whole model for each synchronisation in it.
        """
        while self.group.entries:
            key, _ = self.group.entries.popleft()
            self.group.store.delete_key(key)


def stateless_init_process_group(address: str, port: int, rank: int, world_size: int, device: Any) -> StoreBroadcast:
    """Replaces OpenRLHF's function of the same name."""
    from vllm.distributed.utils import StatelessProcessGroup

    group = StatelessProcessGroup.create(
        host=address, port=port, rank=rank, world_size=world_size, data_expiration_seconds=NEVER
    )
    return StoreBroadcast(group)
