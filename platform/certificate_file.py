"""The certificate's place on disk: beside the run's YAML, under its name. Light: `plan` and `train` look at it."""

from __future__ import annotations

from pathlib import Path

from stormsail.platform.certificate import Certificate, certificate_note, parse_certificate
from stormsail.platform.config.model import RunConfig
from stormsail.platform.errors import ConfigError

_SUFFIX = ".certificate.json"


def certificate_path(config_file: Path) -> Path:
    """`run.yaml` has `run.certificate.json`."""
    return config_file.with_suffix(_SUFFIX)


def read_certificate(config_file: Path) -> Certificate | None:
    """The certificate beside a configuration, or beside the file that it is a link to; None if there is none.

    Raises:
        ConfigError: There is one that cannot be read.
    """
    for path in dict.fromkeys((certificate_path(config_file), certificate_path(config_file.resolve()))):
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the certificate cannot be read: {error}", where=str(path)) from error
        return parse_certificate(text, str(path))
    return None


def note_for(config_file: Path, config: RunConfig) -> str | None:
    """What to tell before a run of this file starts, or None. A certificate that cannot be read is told and stops nothing."""
    try:
        certificate = read_certificate(config_file)
    except ConfigError as error:
        told = f"the stability certificate speaks for nothing: {error.where}: {error.what}; {error.todo}"
        return None if config.drill.faults else told.removesuffix("; ")
    return certificate_note(certificate, config)
