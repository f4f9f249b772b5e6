"""Makes a batch as the settings of a run say."""

from headrace.learner.batches.batch import Batch
from headrace.learner.config import ModelConfig, UnrollConfig
from headrace.learner.spaces import Spaces


def make_batch(
    spaces: Spaces, unroll: UnrollConfig, model: ModelConfig, *, unrolls: int, pinned: bool
) -> Batch:
    return Batch(
        spaces,
        length=unroll.length,
        envs=unroll.envs,
        unrolls=unrolls,
        pinned=pinned,
        memory=model.memory,
        previous=model.previous,
        largest=unroll.largest,
    )
