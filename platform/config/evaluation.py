"""When a run is evaluated on samples that it does not train on, and on how many of them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pydantic import Field, ValidationError

from stormsail.platform.config.checkpoint import CheckpointSection
from stormsail.platform.config.section import Positive, Seconds, Section
from stormsail.platform.config.training import DataSection


class EvalSection(Section):
    """The loss on samples that are held out of training, computed between two steps; training is the same without it."""

    every_steps: Positive | None = Field(
        None, description="steps between two evaluations, the last step is evaluated too; null: never"
    )
    samples: Positive | None = Field(
        256, description="held-out samples of one evaluation, always the same ones; null: all"
    )
    timeout_s: Seconds = Field(600.0, description="limit of one evaluation before the attempt is ended")

    def is_due(self, step: int, *, last: int) -> bool:
        """Whether the state after so many steps is evaluated.

        Args:
            step: Steps done.
            last: Steps of the whole run.
        """
        return self.every_steps is not None and step > 0 and (step % self.every_steps == 0 or step == last)

    def count(self, after: int, *, last: int) -> int:
        """How many evaluations there are after the state of so many steps.

        Args:
            after: Steps done; the state itself does not count.
            last: Steps of the whole run.
        """
        if self.every_steps is None or after >= last:
            return 0
        return math.ceil(last / self.every_steps) - after // self.every_steps

    def contradictions(self, data: DataSection, checkpoint: CheckpointSection) -> Iterator[str]:
        """What cannot all be meant here, one line each, beginning with the full key to change."""
        if self.every_steps is None:
            if checkpoint.keep_best:
                yield (
                    "checkpoint.keep_best: the best one has the lowest evaluation loss, and this run is never evaluated: "
                    "set eval.every_steps"
                )
            return
        if holds_nothing_out(data):
            yield (
                f"eval.every_steps ({self.every_steps}) has nothing to evaluate on: data.args.holdout is 0, "
                "the share of the samples that is kept for it"
            )
        if checkpoint.keep_best and self.every_steps % checkpoint.interval:
            yield (
                f"eval.every_steps ({self.every_steps}) must be a multiple of checkpoint.every_steps "
                f"({checkpoint.interval}) with checkpoint.keep_best: what is evaluated must also be saved"
            )


def holds_nothing_out(data: DataSection) -> bool:
    """Whether it is certain before the start that no sample is held out: only of what is built in."""
    from stormsail.platform.config.builtin_args import PREFIX, builtin_args  # it needs the whole tree

    known = builtin_args("data", data.factory) if data.factory.startswith(PREFIX) else None
    if known is None:
        return False
    try:
        return not getattr(known.model_validate(data.args), "holdout", 0.0)
    except ValidationError:
        return False  # whoever reads the configuration tells what is wrong with them
