"""A trained model as one function of tensors, for runtimes that know nothing of Headrace.

in    every leaf that the network sees, as the environment gives it; "memory", the step before, the
      mask
out   the greedy action as the environment takes it, "params", "value", and what the next step
      is given: "next.memory", "next.previous.choices", "next.previous.numbers"
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from headrace.learner.models.build import acted_on
from headrace.learner.models.model import Model
from headrace.learner.spaces import (
    SHOWN_REWARD,
    SHOWN_UNBOUNDED,
    Action,
    Leaf,
    Part,
    Spaces,
    previous_leaves,
)

_MEMORY = "memory"
_REWARD = "previous.reward"


class TensorPort(NamedTuple):
    """Describes one input or output; its first axis is the batch."""

    name: str
    dtype: str
    shape: tuple[int, ...]  # of one row
    leaf: Leaf | None = None  # of the observation


class OnnxModule(nn.Module):
    """Computes forward(*inputs) -> outputs, in the order of `inputs` and `outputs`."""

    def __init__(self, model: Model, spaces: Spaces) -> None:
        super().__init__()
        self.model = model
        self._leaves = leaves_of(model, spaces)
        self._values = not spaces.critic  # the value is of what is seen by whoever acts
        # The value network's own memory moves on by nothing; the policy reads none of it.
        self._unseen = [leaf for leaf in spaces.observation if leaf.name in spaces.critic]
        self._greedy = _GreedyAction(spaces.action)
        self._previous = [leaf.name for leaf in self._leaves if leaf.name.startswith("previous.")]
        self.outputs = self._outputs(spaces.action)
        taken = {_MEMORY, *(port.name for port in self.outputs)}
        self.inputs = tuple(
            TensorPort(
                f"obs.{leaf.name}" if leaf.name in taken else leaf.name,
                np.dtype(leaf.dtype).name,
                leaf.seen,
                leaf,
            )
            for leaf in self._leaves
        )
        if model.memory:
            self.inputs += (TensorPort(_MEMORY, "float32", (model.memory,)),)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        obs = {
            leaf.name: x - torch.tensor(leaf.start).reshape(leaf.shape) if leaf.start else x
            for leaf, x in zip(self._leaves, inputs, strict=False)
        }
        for leaf in self._unseen:
            dtype = torch.from_numpy(np.zeros(1, leaf.dtype)).dtype
            obs[leaf.name] = inputs[0].new_zeros((len(inputs[0]), *leaf.seen), dtype=dtype)
        if _REWARD in self._previous:
            obs[_REWARD] = obs[_REWARD].clamp(-SHOWN_REWARD, SHOWN_REWARD)
        if self.model.memory:
            memory = inputs[-1]
            params, after = self.model.policy(obs, memory)
            step = {name: x.unsqueeze(0) for name, x in obs.items()}
            value = self.model(step, memory).value.squeeze(0)
        else:
            params, after = self.model.policy(obs)
            value = self.model(obs).value
        actions, choices, numbers = self._greedy(params)
        outputs = [*actions, params, *([value] if self._values else [])]
        if after is not None:
            outputs.append(after)
        if "previous.choices" in self._previous:
            outputs.append(choices)
        if "previous.numbers" in self._previous:
            outputs.append(numbers)
        return tuple(outputs)

    def _outputs(self, action: Action) -> tuple[TensorPort, ...]:
        model = self.model
        ports = [
            TensorPort(part_name(part), "int64" if part.categories else "float32", part.shape)
            for part in action.parts
        ]
        ports += [
            TensorPort("params", "float32", (model.distribution.params,)),
            *([TensorPort("value", "float32", ())] if self._values else []),
        ]
        if model.memory:
            ports.append(TensorPort(f"next.{_MEMORY}", "float32", (model.memory,)))
        ports += [
            TensorPort(f"next.{leaf.name}", np.dtype(leaf.dtype).name, leaf.shape)
            for leaf in self._leaves
            if leaf.name in self._previous and leaf.name != _REWARD
        ]
        return tuple(ports)


def leaves_of(model: Model, spaces: Spaces) -> tuple[Leaf, ...]:
    """Returns all leaves that the policy reads, the mask included."""
    known = {leaf.name: leaf for leaf in (*acted_on(spaces), *previous_leaves(spaces))}
    return tuple(known[name] for name in model.reads if name in known)


def part_name(part: Part) -> str:
    """Returns the name of a part of the action: action, action.left.grip, action.0"""
    return ".".join(map(str, ("action", *part.path)))


class _GreedyAction(nn.Module):
    """Computes the likeliest choices and the means, as actors/action_converter.py turns them into
    actions."""

    low: Tensor
    high: Tensor
    middle: Tensor
    halfway: Tensor
    bounded: Tensor

    def __init__(self, action: Action) -> None:
        super().__init__()
        self._action = action
        boxes = [part for part in action.parts if not part.categories]
        low = np.array([bound for part in boxes for bound in part.low], np.float64)
        high = np.array([bound for part in boxes for bound in part.high], np.float64)
        bounded = np.array([end for part in boxes for end in part.bounded], np.bool_)
        halves = {
            "low": low,
            "high": high,
            "middle": np.where(bounded, low / 2 + high / 2, 0.0),
            "halfway": np.where(bounded, high / 2 - low / 2, 1.0),
        }
        for name, values in halves.items():
            buffer = torch.from_numpy(values.astype(np.float32))
            self.register_buffer(name, buffer, persistent=False)
        self.register_buffer("bounded", torch.from_numpy(bounded), persistent=False)

    def forward(self, params: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
        """Returns the parts of the action; choices [N, C] from 0; numbers [N, D] as the network is
        shown them at the next step."""
        sizes = self._action.categories
        logits = torch.split(params[:, : sum(sizes)], list(sizes), dim=-1) if sizes else ()
        picked = [one.argmax(dim=-1) for one in logits]
        choices = torch.stack(picked, dim=-1) if picked else params[:, :0].long()
        first = sum(sizes)
        drawn = params[:, first : first + self._action.numbers]
        inside = drawn.tanh() if self._action.squash else drawn.clamp(-1.0, 1.0)
        kept = torch.where(self.bounded, inside, drawn)
        scaled = (self.middle + self.halfway * kept).maximum(self.low).minimum(self.high)
        shown = torch.where(self.bounded, inside, drawn.clamp(-SHOWN_UNBOUNDED, SHOWN_UNBOUNDED))
        return self._parts(choices, scaled), choices, shown

    def _parts(self, choices: Tensor, scaled: Tensor) -> list[Tensor]:
        parts, choice, number = [], 0, 0
        for part in self._action.parts:
            if part.categories:
                end = choice + len(part.categories)
                value = choices[:, choice:end] + torch.tensor(part.start)
                choice = end
            else:
                end = number + math.prod(part.shape)
                value = scaled[:, number:end]
                if np.dtype(part.dtype).kind in "iu":
                    value = value.round()
                number = end
            parts.append(value.reshape(-1, *part.shape))
        return parts
