"""Finds the loss of a run: that of its algorithm, or the user's own."""

import functools

import torch

from headrace.learner.algorithms.loss_inputs import Loss, LossFn, LossInputs
from headrace.learner.algorithms.losses import LOSSES
from headrace.learner.config import AlgorithmConfig
from headrace.learner.models import named_code
from headrace.learner.models.named_code import OwnCodeError


def function(config: AlgorithmConfig) -> LossFn:
    """Returns the loss; OwnCodeError where there is no such one."""
    return _own(config.loss) if config.loss else LOSSES[config.name]


@functools.cache
def _own(name: str) -> LossFn:
    loss = named_code.function("algorithm.loss", name)

    def checked(given: LossInputs) -> Loss:
        try:
            made = loss(given)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise OwnCodeError(
                f'algorithm.loss = "{name}" failed, mend it: {named_code.one_line(error)}'
            ) from error
        if not isinstance(made, Loss):
            raise OwnCodeError(
                f'algorithm.loss = "{name}" gives a {type(made).__name__}; it must give a Loss of'
                " headrace.learner.algorithms.loss_inputs"
            )
        return made

    return checked
