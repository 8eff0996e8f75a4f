"""Facts about torch operations, in one place: the kind of each, and which signs it preserves.

Operations are looked up by their plain name: the name of a function, method or module class in
lower case without underscores, so that F.layer_norm and nn.LayerNorm are one operation.
"""

from __future__ import annotations

from torch.nn.modules import batchnorm, instancenorm, normalization

NORMS = (
    batchnorm._BatchNorm,
    instancenorm._InstanceNorm,
    normalization.GroupNorm,
    normalization.LayerNorm,
    normalization.RMSNorm,
)
"""Module classes that set the scale of a signal."""


def _each(pattern: str) -> list[str]:
    """Fills in a pattern for one, two and three dimensions."""
    return [pattern.format(dims) for dims in (1, 2, 3)]


KINDS: dict[str, tuple[str, ...]] = {
    # The same values in another shape, in the same order.
    "reshape": ("view", "reshape", "flatten", "unflatten", "viewas", "reshapeas", "ravel"),
    # The same values with axes in another order.
    "exchange": (
        "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "mt", "mh", "h", "adjoint",
        "permute",
    ),
    # Some or all of the values, with axes added, removed or made longer.
    "view": (
        "unsqueeze", "squeeze", "getitem", "select", "expand", "expandas", "broadcastto",
        "broadcasttensors", "narrow", "diagonal", "unfold",
    ),
    # The same values again, in another type or place, or some of them dropped.
    "copy": (
        "identity", "contiguous", "clone", "detach", "to", "type", "typeas", "float", "double",
        "half", "bfloat16", "cpu", "cuda", "dropout", *_each("dropout{}d"), "droppath",
        "alphadropout",
    ),
    # Values moved or chosen by indices.
    "index": (
        "repeat", "repeatinterleave", "tile", "pad", "roll", "flip", "indexselect", "index",
        "gather", "take", "takealongdim", "maskedselect", "maskedfill", "setitem", "scatter",
        "scatteradd", "scatterreduce", "indexadd", "indexput", "tril", "triu", "diag", "diagembed",
        "fold", "pixelshuffle", "pixelunshuffle", "interpolate", "upsample",
    ),
    "join": ("cat", "concat", "concatenate", "stack", "hstack", "vstack"),
    "split": ("chunk", "split", "splitwithsizes", "tensorsplit", "unbind", "meshgrid"),
    "add": ("add", "iadd", "radd"),
    "subtract": ("sub", "subtract", "isub", "rsub"),
    "multiply": ("mul", "multiply", "imul", "rmul"),
    "divide": ("div", "divide", "truediv", "itruediv", "truedivide", "rdiv", "reciprocal"),
    "product": (
        "matmul", "rmatmul", "imatmul", "mm", "bmm", "mv", "dot", "inner", "outer", "addmm",
        "baddbmm", "einsum",
    ),
    "linear": ("linear", "bilinear", "embedding", "embeddingbag"),
    "recurrent": ("rnn", "lstm", "gru"),
    "convolution": (*_each("conv{}d"), *_each("convtranspose{}d")),
    "attention": ("scaleddotproductattention",),
    "batch norm": ("batchnorm", *_each("batchnorm{}d"), "syncbatchnorm"),
    "group norm": ("groupnorm", "instancenorm", *_each("instancenorm{}d")),
    "layer norm": ("layernorm", "rmsnorm"),
    "average": (
        *_each("avgpool{}d"), *_each("adaptiveavgpool{}d"), "mean", "nanmean",
    ),
    "maximum": (
        *_each("maxpool{}d"), *_each("adaptivemaxpool{}d"), "amax", "amin", "aminmax", "max", "min",
        "median", "maximum", "minimum", "fmax", "fmin",
    ),
    "total": ("sum", "nansum", "cumsum", "prod", "cumprod", "trace"),
    "where": ("where", "addcmul", "lerp"),
    # New tensors with the shape or type of another.
    "create": (
        "zeroslike", "oneslike", "emptylike", "fulllike", "randlike", "randnlike", "newzeros",
        "newones", "newempty", "newfull", "newtensor",
    ),
}  # fmt: skip
KIND_OF = {name: kind for kind, names in KINDS.items() for name in names}

NORM_KINDS = ("batch norm", "group norm", "layer norm")
MOVES = ("reshape", "exchange", "view")
"""Kinds that rearrange values without changing them."""
ADDITIONS = ("add", "subtract")
ARITHMETIC = (*ADDITIONS, "multiply", "divide")
MIXES = (*ARITHMETIC, "where", "join", "product", "attention")
"""Kinds whose output takes values from all arguments. In other kinds, arguments such as regions of
interest determine what is done with the first one."""

SIGN_KEPT = frozenset(
    name
    for kind in (*MOVES, "copy", "index", "join", "split", "add", "divide", "average", "maximum",
                 "total")
    for name in KINDS[kind]
) | {"where", "clampmax", "tanh", "normalize"}  # fmt: skip
"""Operations whose output is non-negative for non-negative input, and may be negative otherwise."""

DIVIDES, COMPARES, TAKES_LOGARITHM = "divides by", "checks the sign of", "takes the logarithm of"
TAKES_ROOT, DRAWS = "takes the square root of", "draws with"

NOT_NEGATIVE: dict[str, tuple[int, str, str]] = {
    **dict.fromkeys(["div", "divide", "itruediv", "truediv", "truedivide"], (1, "other", DIVIDES)),
    **dict.fromkeys(["rdiv", "reciprocal"], (0, "input", DIVIDES)),
    "addcdiv": (2, "tensor2", DIVIDES),
    **dict.fromkeys(["ge", "gt"], (0, "input", COMPARES)),
    **dict.fromkeys(
        ["binarycrossentropy", "log", "log10", "log1p", "log2"], (0, "input", TAKES_LOGARITHM)
    ),
    "xlogy": (1, "other", TAKES_LOGARITHM),
    **dict.fromkeys(["rsqrt", "sqrt"], (0, "input", TAKES_ROOT)),
    **dict.fromkeys(
        ["bernoulli", "multinomial", "poisson", "sampledirichlet", "standardgamma"],
        (0, "input", DRAWS),
    ),
    "normal": (1, "std", DRAWS),
}
"""Operations with an argument that must not be negative: its position, its name, and what the
operation does with it."""
