"""The answer as people read it: the table, what stands under it, and its CSV; pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from stormsail.tuning.answer import Answer
from stormsail.tuning.objective import CellScore, Rate

HEADINGS = (
    "beta2", "clip", "warm-up", "seeds", "success (95 % CI)", "LR sensitivity", "diverged (95 % CI)", "incidents (95 % CI)",
    "spikes", "final loss", "time", "verdict",
)  # fmt: skip
CSV_FIELDS = (
    "beta2", "clip", "warmup", "seeds", "trials", "missing", "stable", "success", "success_low", "success_high",
    "divergence", "divergence_low", "divergence_high", "incidents", "incidents_low", "incidents_high", "lr_sensitivity",
    "spike_loss", "spike_norm", "incidents_per_10k", "max_logit", "update_rms_p99", "clip_rate", "best_lr",
    "final_loss", "final_sd", "wall_s", "verdict",
)  # fmt: skip


def render_answer(answer: Answer) -> str:
    """The table with the control, the edges, the hand-over and how the sweep stands."""
    lines = [
        f"sweep {answer.name}: {answer.done} of {answer.total} trials, {_duration(answer.wall_s)} of computing",
        "",
        *_columns([HEADINGS, *(row_of(row) for row in answer.rows)]),
        "",
        control_line(answer),
        *_edge_lines(answer),
        *_handover_lines(answer),
        f"standing: {standing_line(answer)}",
    ]
    return "\n".join(lines)


def row_of(row: CellScore) -> tuple[str, ...]:
    """One row of the table, in the order of `HEADINGS`."""
    cell = row.cell
    spread = "" if row.final_sd is None else f" ± {row.final_sd:.3f}"
    return (
        f"{cell.beta2:g}",
        cell.clip,
        f"{cell.warmup:.1%}",
        str(row.seeds),
        _rate(row.success),
        _number(row.lr_sensitivity),
        _rate(row.divergence),
        _rate(row.incidents),
        f"{row.spike_loss:.2%}",
        "-" if row.final_loss is None else f"{row.final_loss:.3f}{spread}",
        _duration(row.wall_s),
        row.verdict,
    )


def control_line(answer: Answer) -> str:
    """What became of the known-bad control."""
    control = answer.control
    seen = f"{control.failed} of {control.trials} trials failed"
    if control.missing:
        return f"known-bad control: {seen}, {control.missing} not measured"
    tame = [proxy for proxy in control.proxies if proxy not in control.failed_on]
    return (
        f"known-bad control: {seen}, as they must"
        if not tame
        else f"known-bad control: {seen}; stable on {', '.join(tame)}"
    )


def standing_line(answer: Answer) -> str:
    """How the sweep stands, in a sentence."""
    sentences = {
        "incomplete": "incomplete: go on with the same `stormsail sweep` command",
        "void": "void: settings known to be bad did not fail, so these proxies cannot tell good from bad; "
        "train longer, or raise control.lr_factor",
        "nothing was stable": "no setting was stable with all seeds at any learning rate",
    }
    winner = answer.winner
    if answer.standing in sentences or winner is None:
        return sentences.get(answer.standing, answer.standing)
    return f"answered: {winner.cell}; `stormsail sweep apply {answer.name}` writes it into the target"


def to_csv(rows: Sequence[CellScore]) -> str:
    """The rows as CSV with a header; what is missing is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_FIELDS)
    for row in rows:
        known: dict[str, object] = {
            "beta2": row.cell.beta2,
            "clip": row.cell.clip,
            "warmup": row.cell.warmup,
        }
        for name in ("success", "divergence", "incidents"):
            rate: Rate = getattr(row, name)
            known |= {name: rate.share, f"{name}_low": rate.low, f"{name}_high": rate.high}
        values = [known[name] if name in known else getattr(row, name) for name in CSV_FIELDS]
        writer.writerow(["" if value is None else value for value in values])
    return text.getvalue()


def _edge_lines(answer: Answer) -> list[str]:
    lines = [f"largest stable learning rate on {edge.label}" for edge in answer.edges]
    fit = answer.fit
    if fit is not None and fit.tells_drift:
        lines.append(
            f"drift of that edge: width^{fit.likely.slope:+.2f} explains it, width^{fit.cautious.slope:+.2f} by least squares, "
            f"from {fit.widths} widths"
        )
    return lines


def _handover_lines(answer: Answer) -> list[str]:
    if answer.handover is None:
        return []
    values = [f"  {value.key} = {value.value}: {value.why}" for value in answer.handover.values]
    assumed = [f"  - {text}" for text in answer.handover.assumptions]
    return ["for the target:", *values, "which assumes:", *assumed]


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _rate(rate: Rate) -> str:
    return f"{rate.share:.0%} ({rate.low:.0%}-{rate.high:.0%})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _duration(seconds: float) -> str:
    if seconds < 100:  # noqa: PLR2004 - three digits of seconds read badly
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"  # noqa: PLR2004 - 90 minutes
