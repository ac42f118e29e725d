"""Canonical API names and what they are: supporting another spelling or library is adding a row."""

from __future__ import annotations

import re

SCALERS = {
    # name -> position of `enabled`; `device` is the first parameter where it is True
    "torch.amp.GradScaler": (5, True),
    "torch.GradScaler": (5, True),
    "torch.amp.grad_scaler.GradScaler": (5, True),
    "torch.cuda.amp.GradScaler": (4, False),
    "torch.cuda.amp.grad_scaler.GradScaler": (4, False),
    "torch.cpu.amp.GradScaler": (4, False),
    "torch.cpu.amp.grad_scaler.GradScaler": (4, False),
    "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler": (5, True),
    "torch_npu.npu.amp.GradScaler": (4, False),
    "torch_xla.amp.GradScaler": (4, False),
    "torch.xpu.amp.GradScaler": (4, False),
}

AUTOCASTS = {
    # name -> (device type fixed by the name or None, parameter order)
    "torch.autocast": (None, ("device_type", "dtype", "enabled", "cache_enabled")),
    "torch.amp.autocast": (None, ("device_type", "dtype", "enabled", "cache_enabled")),
    "torch.amp.autocast_mode.autocast": (None, ("device_type", "dtype", "enabled", "cache_enabled")),
    "torch.cuda.amp.autocast": ("cuda", ("enabled", "dtype", "cache_enabled")),
    "torch.cuda.amp.autocast_mode.autocast": ("cuda", ("enabled", "dtype", "cache_enabled")),
    "torch.cpu.amp.autocast": ("cpu", ("enabled", "dtype", "cache_enabled")),
    "torch.xpu.amp.autocast": ("xpu", ("enabled", "dtype", "cache_enabled")),
    "torch.npu.amp.autocast": ("npu", ("enabled", "dtype", "cache_enabled")),
}

DEFAULT_DTYPE = {
    "cuda": "float16",
    "xpu": "float16",
    "mps": "float16",
    "cpu": "bfloat16",
    "xla": "bfloat16",
    "hpu": "bfloat16",
}
"""torch.get_autocast_dtype(device_type) of a fresh process (reference, section 5)."""

CLIPS = frozenset(
    {
        "torch.nn.utils.clip_grad_norm_",
        "torch.nn.utils.clip_grad_value_",
        "torch.nn.utils.clip_grad_norm",
        "torch.nn.utils.clip_grads_with_norm_",
        "torch.nn.utils.clip_grad.clip_grad_norm_",
        "torch.nn.utils.clip_grad.clip_grad_value_",
    }
)

WRAPPERS = frozenset(
    {
        "torch.nn.DataParallel",
        "torch.nn.parallel.DataParallel",
        "torch.nn.parallel.DistributedDataParallel",
        "torch.nn.parallel.distributed.DistributedDataParallel",
        "torch.compile",
        "torch.jit.script",
        "torch.nn.SyncBatchNorm.convert_sync_batchnorm",
        "itertools.cycle",
        "torch.nn.utils.parametrizations.spectral_norm",
        "torch.nn.utils.spectral_norm",
        "torch.nn.utils.weight_norm",
    }
)
"""Calls that return their first argument, wrapped: links to it stay true."""

NO_GRAD = frozenset(
    {"torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad", "torch.autograd.grad_mode.no_grad"}
)

LOWER_PRECISION = frozenset(
    [
        "matmul",
        "mm",
        "bmm",
        "addmm",
        "addmv",
        "addr",
        "baddbmm",
        "addbmm",
        "chain_matmul",
        "linalg.multi_dot",
        "linear",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "einsum",
        "scaled_dot_product_attention",
        "prelu",
        "mv",
        "bilinear",
        "grucell",
        "lstmcell",
        "rnncell",
    ]
)
"""Ops that CUDA autocast runs in the region's dtype (AMPDOC)."""

FLOAT32_OPS = frozenset(
    [
        "acos",
        "asin",
        "cosh",
        "erfinv",
        "exp",
        "expm1",
        "log",
        "log10",
        "log1p",
        "log2",
        "reciprocal",
        "rsqrt",
        "sinh",
        "tan",
        "pow",
        "cumprod",
        "cumsum",
        "dist",
        "norm",
        "prod",
        "sum",
        "renorm",
        "softmax",
        "softmin",
        "log_softmax",
        "logsumexp",
        "layer_norm",
        "group_norm",
        "rms_norm",
        "cosine_similarity",
        "cdist",
        "pdist",
        "cosine_embedding_loss",
        "cross_entropy",
        "nll_loss",
        "nll_loss2d",
        "binary_cross_entropy_with_logits",
        "mse_loss",
        "l1_loss",
        "smooth_l1_loss",
        "huber_loss",
        "kl_div",
        "hinge_embedding_loss",
        "margin_ranking_loss",
        "multilabel_margin_loss",
        "multi_margin_loss",
        "poisson_nll_loss",
        "soft_margin_loss",
        "triplet_margin_loss",
        "triplet_margin_with_distance_loss",
        "gaussian_nll_loss",
        "ctc_loss",
        "interpolate",
        "multilabel_soft_margin_loss",
        "polar",
        "softplus",
    ]
)
"""Ops that CUDA autocast runs in float32, or whose result is float32 (AMPDOC)."""

LOSSES = frozenset(
    [
        "cross_entropy",
        "nll_loss",
        "mse_loss",
        "l1_loss",
        "smooth_l1_loss",
        "huber_loss",
        "kl_div",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "ctc_loss",
        "poisson_nll_loss",
        "gaussian_nll_loss",
        "hinge_embedding_loss",
        "margin_ranking_loss",
        "triplet_margin_loss",
        "soft_margin_loss",
        "multi_margin_loss",
        "multilabel_margin_loss",
        "multilabel_soft_margin_loss",
        "cosine_embedding_loss",
    ]
)

LOWER_MODULES = re.compile(
    r"torch\.nn\.(Linear|Bilinear|LazyLinear|Conv\w*|LazyConv\w*|MultiheadAttention|LSTM|GRU|RNN|LSTMCell|GRUCell|RNNCell)$"
)
FLOAT32_MODULES = re.compile(
    r"torch\.nn\.(LayerNorm|GroupNorm|RMSNorm|Softmax|LogSoftmax|Softmin|Softplus|CosineSimilarity|\w*Loss)$"
)
EPS_POSITION = {
    "LayerNorm": 1, "RMSNorm": 1, "GroupNorm": 2, "BatchNorm1d": 1, "BatchNorm2d": 1, "BatchNorm3d": 1,
    "SyncBatchNorm": 1,
    "InstanceNorm1d": 1, "InstanceNorm2d": 1, "InstanceNorm3d": 1, "CosineSimilarity": 1,
}  # fmt: skip
BATCHNORM = re.compile(r"torch\.nn\.((Lazy|Sync)?BatchNorm(1d|2d|3d)?|InstanceNorm[123]d)$")
BATCHNORM_MODELS = re.compile(
    r"(torchvision\.models|timm\.models)\.(\w+\.)*(resnet|resnext|wide_resnet|densenet|mobilenet|efficientnet|mnasnet|shufflenet|googlenet|"
    r"inception|regnet|vgg\w*_bn|deeplab|fcn|segmentation)"
)

FRAMEWORK_WORDS = re.compile(
    r"accelerat|lightning|Fabric|deepspeed|apex|NativeScaler|[Ll]oss_?[Ss]cal|OptimWrapper|mmcv|mmengine|GradScaler|scaler|"
    r"scale_loss|manual_backward|fp16_optimizer|FP16_Optimizer|transformers\.Trainer|TrainingArguments|colossalai|fairscale|horovod|composer"
)
"""Words that tell that somebody else may scale the loss: rule AMP209 stays silent."""

SCALERISH = re.compile(r"scaler", re.IGNORECASE)
OPTIMIZERISH = re.compile(
    r"(^|_)opt(im|imi[sz]er|imi[sz]ers|ims)?(_|\d|$)|optimi[sz]er|(^|_)opts(_|$)|_opt\d*$", re.IGNORECASE
)
NOT_OPTIMIZER = re.compile(r"sched|option|args|config|cfg|hook|state|param", re.IGNORECASE)
LOSSISH = re.compile(r"loss|crit|objective|cost|penalt", re.IGNORECASE)
HARMLESS = re.compile(
    r"log|print|meter|writer|wandb|tqdm|pbar|progress|monitor|metric|timer|profil|debug|info|warn|tensorboard",
    re.IGNORECASE,
)
DOES_BACKWARD = re.compile(
    r"backward|optimi[sz]|step|unscale|clip|scaler|callback|hook|^on_|update_param|grad_accum", re.IGNORECASE
)
"""Names of unseen functions that may touch gradients or the scaler."""


def is_optimizer(name: str) -> bool:
    """A class of torch.optim, or of a library that follows it."""
    head, _, last = name.rpartition(".")
    if not last[:1].isupper() or "lr_scheduler" in name or last in ("Optimizer", "LRScheduler"):
        return last == "Optimizer" and head == "torch.optim"
    return head.startswith(
        (
            "torch.optim",
            "apex.optimizers",
            "bitsandbytes.optim",
            "torch_optimizer",
            "transformers.optimization",
            "timm.optim",
        )
    )


def is_module(name: str) -> bool:
    """A class of torch.nn (not of its functional or utils parts)."""
    head, _, last = name.rpartition(".")
    return (
        head.startswith("torch.nn")
        and last[:1].isupper()
        and "utils" not in head
        and last not in ("Parameter", "Buffer", "Module")
    )


def short(name: str) -> str:
    """`torch.nn.functional.softmax`, `Tensor.softmax` -> softmax; `torch.linalg.inv` -> linalg.inv."""
    for prefix in ("torch.nn.functional.", "torch.special.", "torch.functional.", "Tensor.", "torch."):
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name
