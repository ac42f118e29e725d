"""ATen/autocast_mode.h -> which operator stands on which of the lists of CUDA's autocast.

The header ships in every wheel of torch since 2.4; earlier releases keep the lists in a source file that does not.
"""

from __future__ import annotations

import re

# The macro that holds a list, and what autocast does with the operators on it.
LISTS = {
    "LOWER_PRECISION_FP": "lower_precision",
    "FP32": "fp32",
    "FP32_SET_OPT_DTYPE": "fp32_set_opt_dtype",
    "DIFFERENT_REDISPATCH_SIGNATURE": "fp32_append_dtype",
    "PROMOTE": "promote",
}
# Registered by hand in ATen/autocast_mode.cpp, which ships in no wheel; the same in all releases from 2.4 to 2.13.
BY_HAND = {
    "cudnn_convolution": "lower_precision",
    "cudnn_convolution_transpose": "lower_precision",
    "binary_cross_entropy": "banned",
}

_MACRO = r"#define AT_FORALL_{}\(_\)((?:.*\\\n)*.*\n)"
_ENTRY = re.compile(r"_\(\s*(\w+)\s*(?:,\s*(\w+)\s*)?\)")
_NAMED = re.compile(r'_\(\s*ADD_NS\(\w+\)\s*,\s*"([\w.]+)"')


def policies_of(header: str) -> dict[str, str]:
    """Operator, with its overload after a dot where there is one -> policy. ValueError when a list is missing."""
    found = dict(BY_HAND)
    for macro, policy in LISTS.items():
        match = re.search(_MACRO.format(macro), header)
        text = match.group(1).replace("\\\n", "\n") if match else ""
        if policy == "fp32_append_dtype":
            names = _NAMED.findall(text)
        else:
            names = [name + (f".{overload}" if overload else "") for name, overload in _ENTRY.findall(text)]
        if not names:
            raise ValueError(f"the list AT_FORALL_{macro} is not in this autocast_mode.h")
        found.update(dict.fromkeys(names, policy))
    return dict(sorted(found.items()))
