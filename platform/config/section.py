"""What every section of the configuration tree is made of: the base class, and the types of its values."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _whole_number(value: object) -> object:
    """Let `1e6` stand for 1000000: YAML reads it as a float, and refusing it helps nobody."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def list_to_tuple(value: object) -> object:
    """Let a YAML list stand for a tuple."""
    return tuple(value) if isinstance(value, list) else value


Count = Annotated[int, Field(ge=0), BeforeValidator(_whole_number)]
Positive = Annotated[int, Field(ge=1), BeforeValidator(_whole_number)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Seconds = Annotated[float, Field(gt=0.0)]
Args = dict[str, Any]


class Section(BaseModel):
    """Base of every section: frozen, unknown keys refused, no NaN, no bool where a number belongs."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
