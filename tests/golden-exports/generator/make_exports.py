"""Computes what diffusers and PEFT read from the adapters in this folder, which the project's exporter wrote.

    python make_exports.py GOLDEN OUT

GOLDEN is the folder tests/golden, OUT this folder. Needs torch, diffusers, peft and safetensors in the versions that
cases.json names. The adapters are loaded by diffusers' load_lora_adapter, which the pipelines call, and by PEFT's
PeftModel; nothing here reads them itself but for the fingerprints of the products.
"""

import contextlib
import importlib.metadata
import json
import sys
from pathlib import Path

import diffusers
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "golden" / "generator"))
from goldenlib.common import true_fp64  # noqa: E402  fp64 also where the models say fp32

SCALES = (1.0, 0.6, -0.5)
CASES = (
    ("flux_exported", "FluxTransformer2DModel", "flux_dev", "FluxPipeline", "flux_exported.safetensors"),
    ("pixart_exported", "PixArtTransformer2DModel", "pixart_sigma", "PixArtSigmaPipeline", "pixart_exported/adapter_model.safetensors"),
)


def attach(model, path):
    """The model with the adapter, and its low-rank layers by module."""
    if path.name == "adapter_model.safetensors":
        model = PeftModel.from_pretrained(model, str(path.parent)).base_model.model
    else:
        model.load_lora_adapter(str(path), prefix="transformer", use_safetensors=True)
    return model, {n: m for n, m in model.named_modules() if hasattr(m, "lora_A") and len(m.lora_A)}


def fingerprint(delta):
    d = delta.flatten()
    j = torch.arange(len(d), dtype=torch.float64)
    return torch.stack([d.norm(), (d * torch.cos(0.01 * j)).sum(), (d * torch.cos(0.0371 * j + 1)).sum(), d.abs().max()])


def run(model, inputs, dtype):
    arguments = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    if "resolution" in arguments or isinstance(model, diffusers.PixArtTransformer2DModel):
        added = {k: arguments.pop(k) for k in ("resolution", "aspect_ratio") if k in arguments}
        arguments["added_cond_kwargs"] = {"resolution": added.get("resolution"), "aspect_ratio": added.get("aspect_ratio")}
    with torch.no_grad(), true_fp64() if dtype == torch.float64 else contextlib.nullcontext():
        return model(**arguments, return_dict=False)[0]


def make(golden, out, name, model_class, folder, pipeline, adapter):
    inputs_path = golden / "transformers" / f"{folder}.0.f32.safetensors"
    inputs = {k[3:]: v for k, v in load_file(inputs_path).items() if k.startswith("in.")}
    tensors, difference = {}, 0.0
    for label, dtype in (("f64", torch.float64), ("f32", torch.float32)):
        fresh = getattr(diffusers, model_class).from_pretrained(golden / "pipelines" / folder / "transformer", torch_dtype=torch.float32)
        model = fresh.to(dtype).eval()
        tensors[f"{label}.base"] = run(model, inputs, dtype)
        model, layers = attach(model, out / "adapters" / adapter)
        model = model.to(dtype)
        own = {n: next(iter(layer.scaling.values())) for n, layer in layers.items()}
        for scale in SCALES:
            for n, layer in layers.items():
                for key in layer.scaling:
                    layer.scaling[key] = own[n] * scale
            tensors[f"{label}.scale_{scale:g}"] = run(model, inputs, dtype)
        if dtype == torch.float64:
            for n, layer in layers.items():
                (key,) = layer.lora_A
                delta = own[n] * layer.lora_B[key].weight @ layer.lora_A[key].weight
                if delta.abs().max() > 0:
                    tensors[f"fingerprint.transformer.{n}"] = fingerprint(delta.detach())
    worst = max(float((tensors[f"f32.{k}"] - tensors[f"f64.{k}"]).abs().max() / tensors[f"f64.{k}"].abs().max())
                for k in ["base"] + [f"scale_{s:g}" for s in SCALES])
    moved = float((tensors["f64.scale_1"] - tensors["f64.base"]).abs().max() / tensors["f64.base"].abs().max())
    file = f"adapters/{name}.golden.safetensors"
    save_file({k: v.contiguous() for k, v in tensors.items()}, out / file)
    return {"file": file, "kind": "adapter",
            "arguments": {"folder": f"../golden/pipelines/{folder}", "pipeline": pipeline, "adapter": f"adapters/{adapter}",
                          "format": "peft_folder" if adapter.endswith("adapter_model.safetensors") else "peft",
                          "inputs": f"../golden/transformers/{folder}.0.f32.safetensors", "scales": SCALES, "components": ["transformer"],
                          "modules": sum(k.startswith("fingerprint.") for k in tensors), "reference": "library"},
            "tensors": {"fingerprint.<component>.<module>": "of delta W at scale 1, fp64, d flat in row-major order: [norm, sum(d cos(0.01 j)), sum(d cos(0.0371 j + 1)), max |d|]",
                        "f32.* / f64.*": "the transformer's output for the inputs of arguments.inputs (in.*), adapters off (base) and at scale s (scale_<s>)"},
            # From one processor to another the reference itself moves by up to half of its fp32 error.
            "tolerance": {"fp64": 1e-10, "fp32": max(1e-5, float(f"{worst:.1e}"))},
            "notes": f"the adapter at scale 1 moves the output by {moved:.2f} of its maximum; fp32 against fp64: {worst:.1e}"}


def main():
    golden, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    torch.set_num_threads(1)
    cases = [make(golden, out, *case) for case in CASES]
    packages = ("torch", "diffusers", "peft", "safetensors")
    versions = {p: torch.__version__ if p == "torch" else importlib.metadata.version(p) for p in packages}
    (out / "cases.json").write_text(json.dumps({"versions": versions, "cases": cases}, indent=1) + "\n")


main()
