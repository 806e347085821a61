"""Everything that the detectors remember: of bounded size, part of every checkpoint, rolled back with it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from stormsail.platform.errors import CheckpointError, StateMismatchError
from stormsail.workers.detect.layers import LayerLevels
from stormsail.workers.detect.nonfinite import DropState, Lately
from stormsail.workers.detect.ranks import RankState
from stormsail.workers.detect.rules.registry import AnyRule
from stormsail.workers.detect.rules.row import Finding, Row
from stormsail.workers.detect.rules.rule import dump_state

_RULES = "rules"


@dataclass(frozen=True, slots=True)
class DetectorState:
    """What is remembered.

    Attributes:
        rules: The state of each rule, by its name; a rule that is not in it has seen nothing.
        drops: Dropped updates, in a row and lately.
        layers: What is normal for each layer group.
        ranks: What is normal for each rank.
    """

    rules: Mapping[str, Any] = field(default_factory=dict)
    drops: DropState = field(default_factory=DropState)
    layers: LayerLevels = field(default_factory=LayerLevels)
    ranks: RankState = field(default_factory=RankState)

    def rules_after(self, row: Row, rules: Sequence[AnyRule]) -> tuple[dict[str, Any], list[tuple[str, Finding]]]:
        """The rules' states after this row, and what they say about it, in their order."""
        states: dict[str, Any] = {}
        findings = []
        for rule in rules:
            before = self.rules.get(rule.name)
            states[rule.name], finding = rule.observe(rule.start() if before is None else before, row)
            if finding is not None:
                findings.append((rule.name, finding))
        return states, findings

    def to_json(self) -> dict[str, object]:
        """As plain JSON values."""
        plain = _rest_of(self)
        return {**plain, _RULES: {name: dump_state(state) for name, state in self.rules.items()}}

    @classmethod
    def from_json(cls, value: object, rules: Sequence[AnyRule]) -> DetectorState:
        """Back from `to_json`, floats bit for bit.

        Args:
            value: What was saved.
            rules: The rules in force now. One that was not in force then has seen nothing yet; the state of one that
                is not any more is left out.

        Raises:
            StateMismatchError: Anything is missing, extra or wrong.
        """
        if not isinstance(value, dict) or not isinstance(value.get(_RULES), dict):
            raise _another_version("it is no state of detectors")
        saved, rest = value[_RULES], {key: part for key, part in value.items() if key != _RULES}
        rest = _with_what_came_later(rest)
        states = {rule.name: _load(rule, saved[rule.name]) for rule in rules if rule.name in saved}
        try:
            known = _REST.validate_python(rest)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise StateMismatchError(
                f"the detectors' saved state cannot be read: {first['msg']}", where=where
            ) from error
        if _canonical(_REST.dump_python(known, mode="json")) != _canonical(rest):
            raise _another_version("its fields differ")
        return cls(states, known.drops, known.layers, known.ranks)


@dataclass(frozen=True, slots=True)
class _Rest:
    """All but the rules, whose types only the rules know."""

    drops: DropState
    layers: LayerLevels
    ranks: RankState


_REST = TypeAdapter(_Rest)


def _rest_of(state: DetectorState) -> dict[str, object]:
    plain: dict[str, object] = _REST.dump_python(_Rest(state.drops, state.layers, state.ranks), mode="json")
    return plain


def _with_what_came_later(rest: dict[str, Any]) -> dict[str, Any]:
    """Checkpoints of before `lately` was counted are read as if nothing had been dropped lately."""
    drops = rest.get("drops")
    if not isinstance(drops, dict) or "lately" in drops:
        return rest
    return {**rest, "drops": {**drops, "lately": asdict(Lately())}}


def _load(rule: AnyRule, saved: object) -> object:
    try:
        state: object = rule.load(saved)
    except CheckpointError as error:
        raise StateMismatchError(error.what, where=error.where) from error
    if _canonical(rule.dump(state)) != _canonical(saved):
        raise _another_version(f"the fields of rule {rule.name} differ")
    return state


def _another_version(why: str) -> StateMismatchError:
    return StateMismatchError(
        f"the detectors' saved state is of another version: {why}",
        todo="go on with the version of Stormsail that wrote it",
    )


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True)
