"""The random weights of the tiny models that make_hf_models.py and make_hf_folders.py write."""
import math

import torch


def randomise(model: torch.nn.Module, spread: float) -> None:
    """Weights large enough that soft-caps, windows and norms show in the logits."""
    generator = torch.Generator().manual_seed(11)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        gemma_norm = name.endswith("norm.weight") and "gemma" in type(model).__name__.lower()
        if parameter.dim() == 1:
            center = 0.0 if name.endswith(".bias") or gemma_norm else 1.0
            parameter.data = center + 0.3 * noise
        else:
            parameter.data = spread * noise / math.sqrt(min(parameter.shape))
