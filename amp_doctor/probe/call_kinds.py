"""How a recorder treats the calls that it sees: those it passes over, and those it opens."""

from __future__ import annotations

import types
from typing import Any

import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation

# Attributes that give a tensor. `grad` is none of them: gradients are what the replay makes anew.
VIEWS = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})
# Methods that give no tensor and change none.
QUIET = frozenset(
    "size dim numel nelement item tolist numpy stride storage_offset is_floating_point is_complex is_contiguous "
    "element_size get_device ndimension data_ptr untyped_storage storage is_signed is_same_size is_pinned "
    "is_shared register_hook register_post_accumulate_grad_hook retain_grad has_names dense_dim sparse_dim "
    "__len__ __bool__ __float__ __int__ __index__ __repr__ __format__ __hash__ __contains__ __iter__ allclose equal "
    "is_nonzero is_set_to is_inference _is_view result_type can_cast promote_types is_tensor is_same_size "
    "broadcast_shapes __array__ __dlpack__ __dlpack_device__ is_distributed is_neg is_conj dtype finfo iinfo "
    "get_default_dtype is_grad_enabled set_default_dtype manual_seed get_rng_state set_rng_state seed "
    "_set_grad_enabled _record_function_enter_new _record_function_exit._RecordFunction".split()
)
# Where the functions are at home that exchange tensors with other ranks.
COLLECTIVES = "torch.distributed.distributed_c10d"
# Methods that give the tensor itself where it has the dtype already.
CASTS = ("float", "half", "bfloat16", "to", "type", "type_as")
_BLIND = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


def _opened(function: Any) -> Any:
    """A composite function of torch whose calls are seen one by one: a copy that asks no mode about itself."""
    never = dict.fromkeys(_BLIND, lambda *_: False)
    copy = types.FunctionType(function.__code__, {**function.__globals__, **never}, function.__name__)
    copy.__defaults__, copy.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return copy


OPENED = {F.multi_head_attention_forward: _opened(F.multi_head_attention_forward)}
