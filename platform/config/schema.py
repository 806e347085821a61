"""The configuration's JSON Schema, for editors that complete and check while one types (pure)."""

from __future__ import annotations

from typing import Any

from stormsail.platform.config.builtin_args import KINDS, PREFIX, builtins_of
from stormsail.platform.config.model import RunConfig

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def config_schema() -> dict[str, Any]:
    """JSON Schema of a configuration file, the args of the built-in factories included."""
    schema = RunConfig.model_json_schema()
    definitions = schema["$defs"]
    for kind in KINDS:
        section = definitions[schema["properties"][kind]["$ref"].rsplit("/", 1)[1]]
        default = section["properties"]["factory"]["default"]
        for name, model in builtins_of(kind).items():
            definitions[model.__name__] = model.model_json_schema()
            rule = _args_rule(f"{PREFIX}{name}", model.__name__, default=default)
            section.setdefault("allOf", []).append(rule)
    # A plain text stands for the url.
    storage = schema["properties"]["storage"]
    storage["anyOf"] = [{"$ref": storage.pop("$ref")}, {"type": "string"}]
    return {"$schema": _DIALECT, **schema, "title": "Stormsail run"}


def _args_rule(factory: str, definition: str, *, default: str) -> dict[str, Any]:
    """With this factory, args look like that definition; without the key, the default factory is meant."""
    condition: dict[str, Any] = {"properties": {"factory": {"const": factory}}}
    if factory != default:
        condition["required"] = ["factory"]
    return {"if": condition, "then": {"properties": {"args": {"$ref": f"#/$defs/{definition}"}}}}
