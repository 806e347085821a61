"""What a module holds besides what is trained: the modes of its parts, and its buffers, which no checkpoint has."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def as_it_was(module: nn.Module) -> Iterator[None]:
    """Whatever happens inside, all parts are then in the mode that they were in, and hold the buffers that they held."""
    parts = list(module.modules())
    modes = [part.training for part in parts]
    buffers = [
        (part, name, buffer, buffer.clone()) for part in parts for name, buffer in part.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode
        for part, name, buffer, value in buffers:
            setattr(part, name, buffer if torch.equal(buffer, value) else buffer.copy_(value))


def buffer_sums(module: nn.Module) -> dict[str, int]:
    """A checksum of each buffer that belongs to the module's state; what is registered as not persistent does not."""
    saved = module.state_dict(keep_vars=True).keys()
    return {
        name: zlib.crc32(buffer.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        for name, buffer in module.named_buffers()
        if name in saved
    }
