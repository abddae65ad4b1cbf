"""How float32 matrix products may be rounded: torch leaves it to the process, so whoever computes sets it."""

from __future__ import annotations

import warnings
from typing import Any

import torch


def set_precision(matmul: str, device: torch.device | str) -> dict[str, Any]:
    """Set the precision of float32 matrix products; returns what holds, for the manifest.

    Args:
        matmul: "highest", or "high" for TF32; of effect on a GPU alone.
        device: where the products are computed.
    """
    torch.set_float32_matmul_precision(matmul if torch.device(device).type == "cuda" else "highest")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    # The compiler advises TF32 where the GPU has it; whether to use it is decided here.
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
    return {
        "float32_matmul": torch.get_float32_matmul_precision(),
        "bfloat16_reduced_reduction": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
    }
