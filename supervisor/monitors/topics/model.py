"""Monitored items about the model and its state; pure."""

from __future__ import annotations

from stormsail.supervisor.monitors.item import Item, Limits
from stormsail.supervisor.monitors.view import each, named

MODEL = (
    Item(
        "model.token_accuracy",
        "share",
        "rows: values accuracy.tokens",
        "tokens that were predicted right",
        Limits(0.02, 0.002, below=True),
        "below chance for long: look at labels, mask and learning rate",
        "loss-spike",
        each(named("accuracy.tokens")),
    ),
    Item(
        "model.attention_logit",
        "logit",
        "rows: values attention.max_logit",
        "largest attention logit of any layer",
        Limits(50.0, 200.0),
        "attention grows: QK-norm, lower learning rate",
        "divergence",
        each(named("attention.max_logit")),
    ),
    Item(
        "model.activation",
        "absolute value",
        "rows: values activation.max",
        "largest output of any layer group",
        Limits(1e3, 6e4),
        "near 65,504 FP16 overflows; see which layer",
        "divergence",
        each(named("activation.max")),
    ),
    Item(
        "model.nonfinite_state",
        "elements",
        "rows: values nonfinite.state",
        "non-finite weights and moments",
        Limits(1.0, 1.0, normal="0"),
        "an incident opens at once; the state is restored",
        "non-finite",
        each(named("nonfinite.state")),
    ),
)
