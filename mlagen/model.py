"""What a model asks of the attention kernels, read from its Hugging Face `config.json`.

Sources of the formulas, by name: the modelling code of DeepSeek-V2 and V3 (class `DeepseekV3Attention`:
softmax scale and `yarn_get_mscale`), the DeepSeek-V2 report (absorbed weights: the latent is key and value
at once), the YaRN paper (attention temperature).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlagen.errors import SpecError
from mlagen.spec import DType

LATENT, ROPE = 512, 64
# Where configurations of models that also see images keep the part about text.
_NESTED = ("text_config", "language_config", "llm_config")
_DTYPES = {"bfloat16": DType.BF16, "float16": DType.FP16}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The attention of one model, whole, before it is divided over GPUs.

    Attributes:
        name: `model_type`, for messages.
        heads: query heads.
        latent, rope: columns of the cache: shared by K and V, and of K alone.
        nope: columns of a head of K before the weights are absorbed; with rope they set the softmax scale.
        q_rank: rank of the query projection; None where queries are projected at once (V2-Lite).
        softmax_scale: factor of q.k, YaRN included.
        dtype: of queries and cache; None if the configuration does not say.
    """

    name: str
    heads: int
    latent: int
    rope: int
    nope: int
    q_rank: int | None
    softmax_scale: float
    dtype: DType | None

    def heads_per_rank(self, tp: int) -> int:
        """Query heads of one rank.

        Raises:
            SpecError: the heads do not divide.
        """
        if tp < 1 or self.heads % tp:
            fits = [size for size in range(1, self.heads + 1) if self.heads % size == 0]
            raise SpecError(
                f"{self.name}: {self.heads} heads do not divide over tp={tp}. "
                f"Sizes that fit: {', '.join(map(str, fits))}"
            )
        return self.heads // tp


def yarn_mscale(factor: float, mscale: float) -> float:
    """YaRN's attention factor: 0.1 m ln(s) + 1 above a scale of 1, else 1."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def softmax_scale(head_dim: int, scaling: Mapping[str, Any] | None) -> float:
    """head_dim ** -0.5, times the square of YaRN's factor where `mscale_all_dim` is set: the rotary embedding
    itself then stays unscaled, and queries and keys each carry the factor once.
    """
    base = float(head_dim**-0.5)
    if not scaling:
        return base
    all_dim = scaling.get("mscale_all_dim") or 0
    return base * yarn_mscale(float(scaling.get("factor", 1.0)), float(all_dim)) ** 2 if all_dim else base


def read_model(path: Path) -> ModelShape:
    """The shape of a model from its `config.json`, or from the folder that holds it.

    Raises:
        SpecError: no such file, not JSON, or not a model that these kernels serve; the message says why.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        body = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(
            f"model {file} cannot be read: {error.strerror}. Give a config.json or its folder"
        ) from error
    except ValueError as error:
        raise SpecError(f"model {file} is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise SpecError(f"model {file} holds a {type(body).__name__}; an object is needed")
    return model_of(body)


def model_of(config: Mapping[str, Any]) -> ModelShape:
    """The shape of a model from the values of its configuration.

    Raises:
        SpecError: not MLA, a value is missing or wrong, or widths for which there is no kernel.
    """
    for nested in _NESTED:
        inner = config.get(nested)
        if "kv_lora_rank" not in config and isinstance(inner, Mapping):
            config = {**{key: config[key] for key in ("torch_dtype", "dtype") if key in config}, **inner}
    name = str(config.get("model_type", "model"))
    if not config.get("kv_lora_rank"):
        raise SpecError(f"{name}: no kv_lora_rank, so its attention is not MLA; these kernels serve MLA only")
    latent, rope = _count(config, "kv_lora_rank", name), _count(config, "qk_rope_head_dim", name)
    if (latent, rope) != (LATENT, ROPE):
        raise SpecError(
            f"{name}: cache rows of {latent}+{rope} columns (kv_lora_rank + qk_rope_head_dim); "
            f"kernels exist for {LATENT}+{ROPE}"
        )
    nope = _count(config, "qk_nope_head_dim", name)
    q_rank = _count(config, "q_lora_rank", name) if config.get("q_lora_rank") else None
    scaling = _scaling(config, name)
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    return ModelShape(
        name=name,
        heads=_count(config, "num_attention_heads", name),
        latent=latent,
        rope=rope,
        nope=nope,
        q_rank=q_rank,
        softmax_scale=softmax_scale(nope + rope, scaling),
        dtype=_DTYPES.get(dtype),
    )


def _scaling(config: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """The table of rotary scaling, under its older or newer name; None where rotary is not scaled by YaRN."""
    found = config.get("rope_scaling") or config.get("rope_parameters")
    if found is None:
        return None
    if not isinstance(found, Mapping):
        raise SpecError(f"{name}: rope_scaling is a {type(found).__name__}; an object is needed")
    kind = found.get("rope_type", found.get("type", "yarn" if "mscale_all_dim" in found else "default"))
    if kind not in ("yarn", "deepseek_yarn"):
        return None
    for key in ("factor", "mscale_all_dim"):
        value = found.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise SpecError(f"{name}: rope_scaling.{key}={value!r}; a number is needed")
    return found


def _count(config: Mapping[str, Any], key: str, name: str) -> int:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SpecError(f"{name}: {key}={value!r}; a whole number above 0 is needed")
    return value
