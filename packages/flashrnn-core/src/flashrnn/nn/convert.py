"""convert(): torch.nn's recurrent layers inside a model become those of flashrnn, with the same parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional
from weakref import ref

from torch import nn

from ..dtypes import DTYPES, FLOATING
from ..errors import ConfigError, DtypeError, describe
from .base import RNNBase
from .modules import GRU, LSTM, RNN

COUNTERPARTS: dict[type[nn.Module], type[RNNBase]] = {nn.LSTM: LSTM, nn.GRU: GRU, nn.RNN: RNN}
ARGUMENTS = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "bidirectional")


@dataclass(frozen=True)
class Conversion:
    """What `convert` did; print it for a list.

    Attributes:
        replaced: paths in the model, as `named_modules` spells them, of the layers replaced; "" is the model itself.
        left: for the path of every other recurrent layer of torch.nn, why it was left as it is.
    """

    replaced: tuple[str, ...]
    left: dict[str, str]

    def __str__(self) -> str:
        lines = [f"{path or 'the model'}: replaced" for path in self.replaced]
        lines += [f"{path or 'the model'}: left, {reason}" for path, reason in self.left.items()]
        return "\n".join(lines) or "no recurrent layer of torch.nn"


def convert(model: nn.Module, *, backend: str = "auto") -> tuple[nn.Module, Conversion]:
    """Replace every torch.nn.LSTM, GRU and RNN in a model, in place, by the layer of flashrnn that computes the same.

    The new layer has the same Parameter objects, so that optimizers, tied weights and state_dicts go on as they are. It is
    in the same mode (training or evaluation), has the same hooks, whose handles still remove them, and the attributes that
    were set on the old one. A layer that stands in several places becomes one that stands there. What the model holds
    outside its registered modules, say in a plain list, is not seen. Convert before the model is compiled or wrapped for
    distributed training.

    A layer is left where the new one would not compute the same: with proj_size, relu or complex numbers; of a subclass, as
    torch.nn.utils.parametrize makes them; with other parameters, buffers or modules, as torch.nn.utils.prune makes them;
    with a forward of its own, as libraries make them that wrap layers in place.

    Args:
        model: a model, or such a layer itself.
        backend: of the new layers, as for `flashrnn.flashrnn()`.

    Returns:
        The model, or what the layer itself has become, and what was replaced and what was left.

    Raises:
        DtypeError: model is not a torch.nn.Module.
        ConfigError: backend is not a string.
    """
    if not isinstance(model, nn.Module):
        raise DtypeError(describe("model", "a torch.nn.Module", type(model).__name__))
    layers = [(path, layer) for path, layer in model.named_modules(remove_duplicate=False) if is_recurrent(layer)]
    reasons = {layer: why_not(layer) for _, layer in layers}
    made = {layer: counterpart(layer, backend) for layer, reason in reasons.items() if reason is None}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child in made:
                parent.register_module(name, made[child])
    replaced = tuple(path for path, layer in layers if layer in made)
    left = {path: reason for path, layer in layers if (reason := reasons[layer]) is not None}
    return made.get(model, model), Conversion(replaced, left)


def is_recurrent(module: nn.Module) -> bool:
    """Whether it is a recurrent layer of torch.nn, or a cell, its single step."""
    return isinstance(module, (nn.RNNBase, nn.RNNCellBase))


def why_not(layer: nn.Module) -> Optional[str]:
    """None if this recurrent layer has a counterpart, else the reason."""
    kind = type(layer)
    if isinstance(layer, nn.RNNCellBase):
        return f"torch.nn.{kind.__name__} is one step, which flashrnn has as flashrnn.step only"
    if kind not in COUNTERPARTS:
        return f"{kind.__name__} is a subclass, whose forward pass may be another"
    if layer.proj_size:
        return f"proj_size is {layer.proj_size}, and flashrnn.nn has no projection of h"
    if layer.mode == "RNN_RELU":
        return "nonlinearity is 'relu', and flashrnn.nn has 'tanh' only"
    if "forward" in vars(layer):
        return "its forward was replaced, on the layer itself"
    try:
        plain = set(COUNTERPARTS[kind](**arguments(layer)).state_dict())
    except (ConfigError, DtypeError) as error:
        return f"flashrnn.nn refuses its arguments: {error}"
    strange = {str(parameter.dtype) for parameter in layer.parameters() if parameter.dtype not in FLOATING}
    if strange:
        return f"its parameters are {', '.join(sorted(strange))}, and flashrnn computes in {', '.join(DTYPES)}"
    own = plain ^ {name for name, parameter in layer._parameters.items() if parameter is not None}
    own |= {*layer._buffers, *layer._modules}
    return f"it has not the parameters of a plain {kind.__name__}: {', '.join(sorted(own))}" if own else None


def arguments(layer: nn.Module) -> dict[str, Any]:
    """Those of a layer's constructor; its parameters would have no memory."""
    return {**{name: getattr(layer, name) for name in ARGUMENTS}, "device": "meta"}


def counterpart(layer: Any, backend: str) -> RNNBase:
    """The layer of flashrnn that takes the place of one that has a counterpart."""
    new = COUNTERPARTS[type(layer)](**arguments(layer), backend=backend)
    new.training, new.dropout = layer.training, layer.dropout  # as an argument, dropout may warn a second time
    for name, parameter in layer.named_parameters(remove_duplicate=False):
        new.register_parameter(name, parameter)
    hooks = {name: value for name, value in vars(layer).items() if "hook" in name}  # torch.nn.Module has them all there
    taken = {*vars(untouched(layer)), *vars(new)}
    of_the_user = {name: value for name, value in vars(layer).items() if name not in taken}
    vars(new).update({**of_the_user, **hooks})
    for hook in (hook for some in hooks.values() if isinstance(some, dict) for hook in some.values()):
        if getattr(hook, "with_module", False):  # those of state_dict are called with a module that they refer to
            hook.module = ref(new)
    return new


def untouched(layer: nn.Module) -> nn.Module:
    """A layer of torch.nn to which nothing was done, with the same arguments."""
    return type(layer)(**arguments(layer))
