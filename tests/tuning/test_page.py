"""The HTML page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

from stormsail.tuning.answer import Answer
from stormsail.tuning.page import render_page


def test_the_page_needs_nothing_from_anywhere(answer: Answer) -> None:
    page = render_page(answer)
    assert not re.search(r"(src|href)=|https?://|@import|<script", page)
    assert page.count("<polyline") == 4
    assert "answered: beta2 0.95" in page


def test_every_drawing_is_well_formed_and_has_finite_places(answer: Answer) -> None:
    drawings = re.findall(r"<svg.*?</svg>", render_page(answer), flags=re.DOTALL)
    assert len(drawings) == 2
    for drawing in drawings:
        points = [line.get("points") for line in ET.fromstring(drawing).iter("polyline")]
        assert all(point and "nan" not in point for point in points)


def test_names_are_escaped_and_an_empty_answer_is_a_page(answer: Answer) -> None:
    page = render_page(replace(answer, name="<b>", rows=(), curves=(), handover=None))
    assert "&lt;b&gt;" in page
    assert "<b>" not in page


def test_a_curve_without_a_single_loss_is_left_out(answer: Answer) -> None:
    nothing = tuple(replace(curve, points=((0.01, None),)) for curve in answer.curves)
    assert "<svg" not in render_page(replace(answer, curves=nothing))
