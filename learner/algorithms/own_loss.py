"""Finds the loss of a run: that of its algorithm, or the user's own."""

import functools

import torch

from headrace.learner.algorithms.loss_inputs import Loss, LossFn, LossInputs
from headrace.learner.algorithms.losses import LOSSES
from headrace.learner.config import AlgorithmConfig
from headrace.learner.models import named_code


class LossError(ValueError):
    """Says what is wrong with the user's loss, in one line."""


def function(config: AlgorithmConfig) -> LossFn:
    """Returns the loss; LossError where there is no such one."""
    return _own(config.loss) if config.loss else LOSSES[config.name]


@functools.cache
def _own(name: str) -> LossFn:
    try:
        loss = named_code.imported(name)
    except Exception as error:
        raise LossError(
            f'algorithm.loss = "{name}" cannot be imported: {named_code.one_line(error)}'
        ) from error
    if not callable(loss):
        raise LossError(f'algorithm.loss = "{name}" is a {type(loss).__name__}, not a function')

    def checked(given: LossInputs) -> Loss:
        try:
            made = loss(given)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise LossError(
                f'algorithm.loss = "{name}" failed, mend it: {named_code.one_line(error)}'
            ) from error
        if not isinstance(made, Loss):
            raise LossError(
                f'algorithm.loss = "{name}" gives a {type(made).__name__}; it must give a Loss of'
                " headrace.learner.algorithms.loss_inputs"
            )
        return made

    return checked
