"""How a configuration lays a model out: which rank holds which layers of which replica."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from autotune.core.errors import CompileError, UsageError
from autotune.core.pipeline import PARAMETERS, SCHEDULES
from autotune.core.records import Config, Scalar

HOST_RANKS = 64  # processes that are started where they share the cores of the host

SPLITS = ("even", "balanced")
"""Splits by name: equally many layers per stage, or equally long stages as far as layers allow."""

_COUNTS = re.compile(r"[1-9][0-9]*(?:-[1-9][0-9]*)*")


def setting(config: Config, name: str) -> Scalar:
    """A pipeline's parameter, its default if the configuration does not have it."""
    return config.get(name, PARAMETERS[name])


def whole(config: Config, name: str) -> int:
    """A parameter that is a whole number."""
    return int(setting(config, name))


def chunks_of(config: Config, schedule: str) -> int:
    """Stages per rank: as the configuration says, else as few as the schedule takes."""
    return int(config.get("chunks_per_rank", 1 if SCHEDULES[schedule].single else 2))


def read_split(text: str) -> tuple[int, ...]:
    """Layers per stage of a split such as "3-5"; () for one by name.

    Raises:
        UsageError: It is neither.
    """
    if text in SPLITS:
        return ()
    if not _COUNTS.fullmatch(text):
        raise UsageError(
            f"stage_split: '{text}' is neither {' nor '.join(SPLITS)} nor layers per stage "
            "such as 3-5"
        )
    return tuple(map(int, text.split("-")))


def even(layers: int, stages: int) -> tuple[int, ...]:
    """Layers per stage, the first ones take what is left over."""
    each, more = divmod(layers, stages)
    return tuple(each + (stage < more) for stage in range(stages))


def balanced(times_s: Sequence[float], stages: int) -> tuple[int, ...]:
    """Layers per stage so that the longest stage is as short as it can be.

    Args:
        times_s: Of one micro-batch in every layer, forward and backward.
    """
    count = len(times_s)
    upto = [0.0]
    for seconds in times_s:
        upto.append(upto[-1] + seconds)
    # best[k][i]: the longest of k stages over the first i layers, and where the last begins.
    best = [[(float("inf"), 0)] * (count + 1) for _ in range(stages + 1)]
    best[0][0] = (0.0, 0)
    for k in range(1, stages + 1):
        for i in range(k, count + 1):
            best[k][i] = min(
                (max(best[k - 1][j][0], upto[i] - upto[j]), j) for j in range(k - 1, i)
            )
    counts: list[int] = []
    end = count
    for k in range(stages, 0, -1):
        begin = best[k][end][1]
        counts.append(end - begin)
        end = begin
    return tuple(reversed(counts))


def most_replicas(devices: int, stages: int, batches: Sequence[int]) -> int:
    """The most replicas of so many stages that the devices hold and every batch divides into."""
    fitting = range(devices // stages, 1, -1)
    return next((n for n in fitting if all(batch % n == 0 for batch in batches)), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A configuration's ranks and stages.

    Attributes:
        ranks: Of one replica. `chunks`: stages per rank.
        items: Of one micro-batch.
    """

    schedule: str
    ranks: int
    chunks: int
    replicas: int
    micro_batches: int
    rounds: int
    items: int

    @classmethod
    def of(cls, config: Config) -> Layout:
        """The layout of a configuration.

        Raises:
            UsageError: It cannot be run; says what does not fit.
        """
        schedule = str(setting(config, "schedule"))
        if schedule not in SCHEDULES:
            raise UsageError(f"schedule: unknown {schedule!r}; known: {', '.join(SCHEDULES)}")
        rounds, replicas = whole(config, "gradient_accumulation"), whole(config, "replicas")
        pieces = config.micro_batch_count * rounds * replicas
        batch = whole(config, "global_batch_size")
        layout = cls(
            schedule=schedule,
            ranks=whole(config, "stage_count"),
            chunks=chunks_of(config, schedule),
            replicas=replicas,
            micro_batches=config.micro_batch_count,
            rounds=rounds,
            items=batch // pieces,
        )
        if batch % pieces:
            near = " or ".join(str(n * pieces) for n in (layout.items, layout.items + 1) if n)
            raise UsageError(
                f"global_batch_size={batch} is not divisible by micro_batch_count x "
                f"gradient_accumulation x replicas = {pieces}; {near} is"
            )
        if why := layout.misfit():
            raise UsageError(why)
        return layout

    def misfit(self) -> str:
        """Why the schedule does not run so, empty if it does."""
        kind, count = SCHEDULES[self.schedule], self.micro_batches
        if kind.single and self.chunks != 1:
            return f"{self.schedule} has one stage per rank, not chunks_per_rank={self.chunks}"
        if not kind.single and self.ranks < 2:
            return f"{self.schedule} interleaves at least 2 ranks, not stage_count={self.ranks}"
        if kind.placement == "v" and self.chunks != 2:
            return f"{self.schedule} has two stages per rank, not chunks_per_rank={self.chunks}"
        if self.schedule == "1F1B" and count < self.ranks:
            return (
                f"1F1B needs micro_batch_count >= stage_count: {count} is below {self.ranks}; "
                "GPipe takes fewer"
            )
        if self.schedule == "DualPipeV" and count < self.stages:
            return (
                "DualPipeV needs as many micro-batches as stages, two per rank: "
                f"micro_batch_count={count} is below {self.stages}"
            )
        if self.schedule in ("Interleaved1F1B", "InterleavedZeroBubble"):
            turns = max(1, count // self.ranks)
            if count % turns:
                return (
                    f"{self.schedule} takes micro-batches in {turns} equal turns: "
                    f"micro_batch_count={count} is no multiple of {turns}; one of "
                    f"stage_count={self.ranks} always fits"
                )
        return ""

    @property
    def stages(self) -> int:
        """Stages of one replica."""
        return self.ranks * self.chunks

    def stages_of(self, place: int) -> tuple[int, ...]:
        """The stages that the rank at this place of a replica holds."""
        if SCHEDULES[self.schedule].placement == "v":
            return (place, self.stages - 1 - place)
        return tuple(place + self.ranks * chunk for chunk in range(self.chunks))

    def counts(self, split: str, layers: int, times_s: Sequence[float] = ()) -> tuple[int, ...]:
        """Layers of every stage.

        Args:
            times_s: Of every layer, for the balanced split; without them it is the even one.
        Raises:
            UsageError: The split does not fit the model or the stages.
        """
        given = read_split(split)
        if layers < self.stages:
            raise UsageError(f"{layers} layers are too few for {self.stages} stages")
        if not given:
            is_timed = split == "balanced" and len(times_s) == layers
            return balanced(times_s, self.stages) if is_timed else even(layers, self.stages)
        if len(given) != self.stages:
            raise UsageError(
                f"stage_split={split} is for {len(given)} stages, and there are {self.stages}"
            )
        if sum(given) != layers:
            raise UsageError(
                f"stage_split={split} has {sum(given)} layers, and the model has {layers}"
            )
        return given

    def check_tied(self, tied: Sequence[Sequence[int]], counts: Sequence[int]) -> None:
        """Refuse to part layers that share parameters.

        Args:
            tied: Groups of them. counts: layers of every stage.
        Raises:
            CompileError: Some lie on different ranks.
        """
        rank_of = [0] * sum(counts)
        for place in range(self.ranks):
            for stage in self.stages_of(place):
                first = sum(counts[:stage])
                rank_of[first : first + counts[stage]] = [place] * counts[stage]
        for group in tied:
            places = sorted({rank_of[layer] for layer in group})
            if len(places) > 1:
                raise CompileError(
                    f"layers {_listed(group)} share parameters, and this split puts them on ranks "
                    f"{_listed(places)}, which would train copies of them: use a schedule that "
                    "turns round at the last rank (ZBVZeroBubble, DualPipeV), whose first and "
                    "last stage are on rank 0, another split, or parameters of their own"
                )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What configurations of a space have to fit.

    Attributes:
        schedules: Those that a configuration may have.
        layers: Of the model; None: not known before it is built.
        devices: How many there are, each for one rank; None: any number of ranks runs.
        has_chunks: Stages per rank are a parameter of the space.
    """

    schedules: tuple[str, ...]
    layers: int | None = None
    devices: int | None = None
    has_chunks: bool = False
    forward_only: bool = False

    def refusal(self, config: Config) -> str:
        """What keeps a configuration from running, in words; empty if nothing does."""
        split = str(setting(config, "stage_split"))
        try:
            layout = Layout.of(config)
            layers = self.layers or sum(read_split(split)) or layout.stages
            layout.counts(split, layers)
        except UsageError as error:
            return str(error)
        if self.forward_only and layout.schedule != "GPipe":
            return f"without backward passes {layout.schedule} is GPipe; write schedule: GPipe"
        count = layout.ranks * layout.replicas
        if self.devices is not None and count > self.devices:
            return (
                f"stage_count={layout.ranks} x replicas={layout.replicas} are {count} ranks, and "
                f"there is room for {self.devices}"
            )
        return ""

    def where(self, holds: Callable[[str], bool], rule: str) -> Iterator[str]:
        """A rule for some schedules alone, none if the space has none of them."""
        names = [name for name in self.schedules if holds(name)]
        if len(names) == len(self.schedules):
            yield rule
        elif names:
            listed = " ".join(f"'{name}'," for name in names)
            yield f"schedule not in ({listed}) or {rule}"


def rules(bounds: Bounds, splits: Sequence[str]) -> Iterator[str]:
    """What every configuration must keep, as rules of a space file: what `Layout` would refuse.

    Args:
        splits: Values of stage_split.
    Raises:
        UsageError: A split is none, or not of the model.
    """
    yield "global_batch_size % (micro_batch_count * gradient_accumulation * replicas) == 0"
    yield from bounds.where(_interleaves, "stage_count >= 2")
    yield from bounds.where("1F1B".__eq__, "micro_batch_count >= stage_count")
    yield from bounds.where("DualPipeV".__eq__, "micro_batch_count >= 2 * stage_count")
    # Turns of equal length: M // S of them, one if M is below S.
    turns = "micro_batch_count % (micro_batch_count // stage_count) == 0"
    yield from bounds.where(
        ("Interleaved1F1B", "InterleavedZeroBubble").__contains__,
        f"micro_batch_count < stage_count or {turns}",
    )
    if bounds.has_chunks:
        yield from bounds.where(lambda n: SCHEDULES[n].single, "chunks_per_rank == 1")
        yield from bounds.where(lambda n: SCHEDULES[n].placement == "v", "chunks_per_rank == 2")
    if bounds.forward_only:
        yield "schedule == 'GPipe'"
    if bounds.devices is not None:
        yield f"stage_count * replicas <= {bounds.devices}"
    if bounds.layers is not None:
        yield from _of_stages(bounds, f"<= {bounds.layers}")
    for split in splits:
        if given := read_split(split):
            if bounds.layers is not None and sum(given) != bounds.layers:
                raise UsageError(
                    f"params.stage_split: {split} has {sum(given)} layers, and the model has "
                    f"{bounds.layers}"
                )
            for rule in _of_stages(bounds, f"== {len(given)}"):
                yield f"stage_split != '{split}' or {rule}"


def _of_stages(bounds: Bounds, compared: str) -> Iterator[str]:
    """Rules on the number of stages of a replica."""
    if bounds.has_chunks:
        yield f"stage_count * chunks_per_rank {compared}"
        return
    yield from bounds.where(lambda n: not _interleaves(n), f"stage_count {compared}")
    yield from bounds.where(_interleaves, f"stage_count * 2 {compared}")


def _interleaves(schedule: str) -> bool:
    return not SCHEDULES[schedule].single
