"""Where samples come from: what the step loop asks of a data set, and the built-in ones."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from stormsail.platform.config.builtin_args import PythonStdlibArgs, TokensArgs
from stormsail.platform.config.training import DataSection
from stormsail.platform.data.corpus import python_stdlib, stdlib_name
from stormsail.platform.data.tokens import Sample, TokenDataset
from stormsail.platform.errors import ConfigError
from stormsail.platform.home import Home


@runtime_checkable
class DataSource(Protocol):
    """A finite set of samples that can be read in any order.

    `sample(i)` is a pure function of `i`: every rank, after every restart, gets the same arrays.
    """

    @property
    def digest(self) -> str:
        """Changes whenever any sample does; runs compare it before they continue."""

    def samples(self) -> int:
        """How many samples there are."""

    def sample(self, index: int, /) -> Sample:
        """Sample `index`: (tokens int64, targets int64, mask float32), each of shape [sequence_tokens]."""


@runtime_checkable
class HoldsOut(Protocol):
    """What a data source may have besides, for a run that is evaluated."""

    def held_out(self) -> DataSource | None:
        """The samples that are not trained on, as a source of their own; None where there are none."""


class ShardSource:
    """Samples of fixed length from a folder of token shards.

    Attributes:
        dataset: The open folder.
        sequence_tokens: Tokens per sample.
        holdout: Share of the samples, at the end of the stream, that is not trained on.
    """

    def __init__(self, dataset: TokenDataset, sequence_tokens: int, holdout: float = 0.0) -> None:
        self._all = dataset.samples(sequence_tokens)
        self._samples = int(self._all * (1.0 - holdout))
        if not self._samples:
            raise ConfigError(
                f"holds {dataset.spec.tokens} tokens, too few for one sample of data.sequence_tokens {sequence_tokens}"
                + (f" besides a holdout of {holdout}" if holdout else ""),
                where=str(dataset.folder),
                todo="Lower data.args.holdout." if self._all else "Use shorter samples or more data.",
            )
        self.dataset = dataset
        self.sequence_tokens = sequence_tokens
        self.holdout = holdout

    @property
    def digest(self) -> str:
        """Of the tokens, and of how they are cut into samples and how many of those are trained on."""
        return f"{self.dataset.spec.digest}/{self.sequence_tokens}/{self._samples}"

    @property
    def vocab_size(self) -> int:
        """All tokens are below this."""
        return self.dataset.spec.vocab_size

    def samples(self) -> int:
        """How many samples are trained on."""
        return self._samples

    def sample(self, index: int, /) -> Sample:
        """Sample `index`; see `DataSource`."""
        if not 0 <= index < self._samples:
            raise IndexError(f"sample {index} of {self._samples}")
        return self.dataset.sample(index, self.sequence_tokens)

    def held_out(self) -> DataSource | None:
        """The samples behind those that are trained on; see `HoldsOut`."""
        return _Behind(self, self._all - self._samples) if self._samples < self._all else None


class _Behind:
    """The last samples of a folder, which training leaves out."""

    def __init__(self, trained: ShardSource, samples: int) -> None:
        self._trained = trained
        self._samples = samples

    @property
    def digest(self) -> str:
        return f"{self._trained.digest}/held out"

    def samples(self) -> int:
        return self._samples

    def sample(self, index: int, /) -> Sample:
        if not 0 <= index < self._samples:
            raise IndexError(f"held-out sample {index} of {self._samples}")
        return self._trained.dataset.sample(self._trained.samples() + index, self._trained.sequence_tokens)


def stdlib_source(section: DataSection) -> ShardSource:
    """`builtin:python-stdlib`: the shards are written below the home folder on first use."""
    args = PythonStdlibArgs.model_validate(section.args)
    folder = Home.here().data / stdlib_name(args)
    python_stdlib(folder, args)
    return ShardSource(TokenDataset.open(folder), section.sequence_tokens, args.holdout)


def tokens_source(section: DataSection) -> ShardSource:
    """`builtin:tokens`: a folder of shards of your own."""
    args = TokensArgs.model_validate(section.args)
    return ShardSource(TokenDataset.open(Path(args.path).expanduser()), section.sequence_tokens, args.holdout)
