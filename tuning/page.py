"""The answer as one HTML page that needs nothing else: table, loss over learning rate, heat maps; pure."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

from stormsail.tuning.answer import Answer, Curve
from stormsail.tuning.table import HEADINGS, control_line, row_of, standing_line

_WIDTH, _HEIGHT, _MARGIN = 560, 320, 48
_COLOURS = ("#1b6ca8", "#c0392b", "#27803b", "#8e44ad", "#b9770e", "#148f8b", "#5d6d7e", "#d35487")
_MOST_CURVES = 8
_CURVES_SAY = (
    "<p>A flat valley is what a good setting has: it forgives a learning rate that is off. The best "
    f"{_MOST_CURVES} settings are drawn; losses are min(final, initial), means over seeds.</p>"
)
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #1c2430; }
table { border-collapse: collapse; margin: 1rem 0; } td, th { padding: .25rem .7rem; text-align: left; }
th { border-bottom: 2px solid #1c2430; } tr.winner { background: #e3f2e6; } tr.pareto { background: #f2f7fb; }
td.heat { text-align: right; min-width: 4.5rem; } p.standing { font-weight: 600; } figure { display: inline-block; margin: 0 1.5rem 1.5rem 0; }
svg text { font: 11px system-ui, sans-serif; fill: #1c2430; } figcaption { font-weight: 600; }
"""


def render_page(answer: Answer) -> str:
    """The whole page."""
    parts = [
        f"<h1>Sweep {_text(answer.name)}</h1>",
        f"<p class=standing>{_text(standing_line(answer))}</p>",
        f"<p>{_text(control_line(answer))}. {answer.done} of {answer.total} trials.</p>",
        _table(answer),
        "<h2>Loss over learning rate</h2>",
        _CURVES_SAY,
        *(_figure(proxy, _best_curves(answer, proxy)) for proxy in _proxies(answer)),
        "<h2>Loss by beta2 and learning rate</h2>",
        "<p>Means over clips and warm-ups. Darker is worse.</p>",
        *(_heat_map(proxy, [c for c in answer.curves if c.proxy == proxy]) for proxy in _proxies(answer)),
        *_handover(answer),
    ]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Sweep {_text(answer.name)}</title>'
        f"<style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _table(answer: Answer) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in HEADINGS)
    rows = "\n".join(
        f"<tr class={row.verdict}>{''.join(f'<td>{_text(value)}</td>' for value in row_of(row))}</tr>"
        for row in answer.rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _proxies(answer: Answer) -> list[str]:
    return list(dict.fromkeys(curve.proxy for curve in answer.curves))


def _best_curves(answer: Answer, proxy: str) -> list[Curve]:
    order = {row.cell: place for place, row in enumerate(answer.rows)}
    mine = [curve for curve in answer.curves if curve.proxy == proxy]
    return sorted(mine, key=lambda curve: order[curve.cell])[:_MOST_CURVES]


def _figure(proxy: str, curves: Sequence[Curve]) -> str:
    points = [(lr, loss) for curve in curves for lr, loss in curve.points if loss is not None]
    if not points:
        return ""
    across = _Axis([math.log10(lr) for lr, _ in points], _MARGIN, _WIDTH - 12)
    down = _Axis([loss for _, loss in points], _HEIGHT - _MARGIN, 12)
    lines, legend = [], []
    for number, curve in enumerate(curves):
        colour = _COLOURS[number % len(_COLOURS)]
        places = " ".join(
            f"{across.at(math.log10(lr)):.1f},{down.at(loss):.1f}" for lr, loss in curve.points if loss is not None
        )
        title = f"<title>{_text(str(curve.cell))}</title>"
        lines.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{places}">{title}</polyline>')
        legend.append(f'<span style="color:{colour}">&#9632;</span> {_text(str(curve.cell))}')
    ticks = [
        f'<text x="{across.at(math.log10(lr)):.0f}" y="{_HEIGHT - 28}" text-anchor="middle">{lr:.3g}</text>'
        for lr in sorted({lr for lr, _ in points})
    ] + [f'<text x="{_MARGIN - 6}" y="{down.at(loss):.0f}" text-anchor="end">{loss:.2f}</text>' for loss in down.ends()]
    label = f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 8}" text-anchor="middle">peak learning rate</text>'
    drawing = "".join([*lines, *ticks, label])
    return (
        f"<figure><figcaption>{_text(proxy)}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img">{drawing}</svg>'
        f"<div>{'<br>'.join(legend)}</div></figure>"
    )


class _Axis:
    """Maps values linearly to pixels, smallest to `start`.

    Args:
        values: At least one.
        start: Pixel of the smallest.
        stop: Pixel of the largest.
    """

    def __init__(self, values: Sequence[float], start: float, stop: float) -> None:
        self._low, self._high = min(values), max(values)
        self._start, self._stop = start, stop

    def at(self, value: float) -> float:
        """The pixel of a value."""
        span = (self._high - self._low) or 1.0
        return self._start + (value - self._low) / span * (self._stop - self._start)

    def ends(self) -> tuple[float, float]:
        """Smallest and largest value."""
        return self._low, self._high


def _heat_map(proxy: str, curves: Sequence[Curve]) -> str:
    means = _by_beta2(curves)
    if not means:
        return ""
    rates = sorted({lr for _, lr in means})
    low, high = min(means.values()), max(means.values())
    head = "".join(f"<th>{lr:.3g}</th>" for lr in rates)
    rows = []
    for beta2 in sorted({beta2 for beta2, _ in means}):
        cells = "".join(_heat_cell(means.get((beta2, lr)), low, high) for lr in rates)
        rows.append(f"<tr><th>{beta2:g}</th>{cells}</tr>")
    return f"<figure><figcaption>{_text(proxy)}</figcaption><table><tr><th>beta2</th>{head}</tr>{''.join(rows)}</table></figure>"


def _by_beta2(curves: Iterable[Curve]) -> dict[tuple[float, float], float]:
    found: dict[tuple[float, float], list[float]] = {}
    for curve in curves:
        for lr, loss in curve.points:
            if loss is not None:
                found.setdefault((curve.cell.beta2, lr), []).append(loss)
    return {key: sum(losses) / len(losses) for key, losses in found.items()}


def _heat_cell(loss: float | None, low: float, high: float) -> str:
    if loss is None:
        return "<td class=heat>-</td>"
    share = (loss - low) / ((high - low) or 1.0)
    light = round(96 - 50 * share)
    return f'<td class=heat style="background:hsl(14 70% {light}%)">{loss:.3f}</td>'


def _handover(answer: Answer) -> list[str]:
    if answer.handover is None:
        return []
    values = "".join(
        f"<li><code>{_text(value.key)}: {value.value}</code> &mdash; {_text(value.why)}</li>"
        for value in answer.handover.values
    )
    assumed = "".join(f"<li>{_text(text)}</li>" for text in answer.handover.assumptions)
    return [f"<h2>For the target</h2><ul>{values}</ul><p>This assumes:</p><ul>{assumed}</ul>"]


def _text(value: object) -> str:
    return html.escape(str(value))
