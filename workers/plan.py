"""What all ranks must hold alike before they update: the step's plan, and one number that stands for it; pure.

Ranks that step at different learning rates, clip limits or batches drift apart without any number looking wrong. So
every rank puts a hash of its plan into the packed collective, and where two differ, nobody updates.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import blake2b

from stormsail.platform.config.model import RunConfig
from stormsail.platform.messages import Directive

Plan = Mapping[str, object]


def standing_plan(config: RunConfig, directive: Directive, *, precision: str, world_size: int, samples: int) -> Plan:
    """The part of the plan that holds until the next directive."""
    return {
        "generation": directive.generation,
        "precision": precision,
        "clip_norm": config.train.clip_norm,
        "global_batch": config.train.global_batch,
        "micro_batch": config.train.micro_batch,
        "sequence_tokens": config.data.sequence_tokens,
        "samples": samples,
        "seed": config.seed,
        "world_size": world_size,
        "skip": directive.skip,
        "lr_events": [asdict(event) for event in directive.lr_events],
    }


def digest_of(plan: Plan) -> bytes:
    """A digest of the standing part, to be made once for each directive."""
    return blake2b(json.dumps(plan, sort_keys=True).encode(), digest_size=16).digest()


def plan_word(standing: bytes, step: int, rates: Sequence[float]) -> int:
    """The step's plan as one signed 64-bit number.

    Args:
        standing: `digest_of` the standing part.
        step: Global batch (0-based).
        rates: The learning rates that the optimizer holds, by group.
    """
    text = f"{step} {' '.join(rate.hex() for rate in rates)}".encode()
    return int.from_bytes(blake2b(standing + text, digest_size=8).digest(), "big", signed=True)


def disagreeing(words: Sequence[int]) -> tuple[int, ...]:
    """Ranks whose word is not that of the majority; all of them where there is none, () where all agree."""
    if len(set(words)) <= 1:
        return ()
    word, count = Counter(words).most_common(1)[0]
    if 2 * count <= len(words):
        return tuple(range(len(words)))
    return tuple(rank for rank, its in enumerate(words) if its != word)


def differences(plans: Sequence[Plan]) -> dict[str, list[str]]:
    """What the plans differ in: by field, the value of each rank as text."""
    fields = dict.fromkeys(field for plan in plans for field in plan)
    shown = {field: [json.dumps(plan.get(field), sort_keys=True) for plan in plans] for field in fields}
    return {field: values for field, values in shown.items() if len(set(values)) > 1}
