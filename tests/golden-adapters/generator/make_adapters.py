"""Writes adapters of Z-Image, FLUX.2 and Qwen-Image in the forms that users have, and what each changes.

    python make_adapters.py

needs diffusers, peft and safetensors of PyPI (versions in ../cases.json). Weights are random. Every file is read by
diffusers' own loader of its pipeline, and the changes are those of the layers that PEFT then has in the transformer.
"""

import json
import pathlib

import diffusers
import peft
import torch
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).resolve().parents[1]
NEWER = ROOT.parent / "golden-newer"
RANK, ALPHA = 2, 3.0

# The names of Black Forest Labs' FLUX.2 for the modules of diffusers; packed ones share a factor.
FLUX2 = {"double_blocks.{}.img_attn.qkv": ["transformer_blocks.{}.attn.to_q", "transformer_blocks.{}.attn.to_k", "transformer_blocks.{}.attn.to_v"],
         "double_blocks.{}.txt_attn.qkv": ["transformer_blocks.{}.attn.add_q_proj", "transformer_blocks.{}.attn.add_k_proj", "transformer_blocks.{}.attn.add_v_proj"],
         "double_blocks.{}.img_attn.proj": ["transformer_blocks.{}.attn.to_out.0"], "double_blocks.{}.txt_attn.proj": ["transformer_blocks.{}.attn.to_add_out"],
         "double_blocks.{}.img_mlp.0": ["transformer_blocks.{}.ff.linear_in"], "double_blocks.{}.img_mlp.2": ["transformer_blocks.{}.ff.linear_out"],
         "double_blocks.{}.txt_mlp.0": ["transformer_blocks.{}.ff_context.linear_in"], "double_blocks.{}.txt_mlp.2": ["transformer_blocks.{}.ff_context.linear_out"],
         "single_blocks.{}.linear1": ["single_transformer_blocks.{}.attn.to_qkv_mlp_proj"], "single_blocks.{}.linear2": ["single_transformer_blocks.{}.attn.to_out"]}


def fingerprint(delta):
    flat = delta.flatten()
    j = torch.arange(flat.numel(), dtype=torch.float64)
    return torch.stack([flat.norm(), (flat * torch.cos(j * 0.01)).sum(), (flat * torch.cos(j * 0.0371 + 1)).sum(), flat.abs().max()])


def pair(generator, out, inputs):
    return torch.randn(RANK, inputs, generator=generator) / 8, torch.randn(out, RANK, generator=generator) / 8


def targets_of(transformer, blocks):
    """The linear layers within these lists of blocks, by name."""
    return {name: module for name, module in transformer.named_modules()
            if isinstance(module, torch.nn.Linear) and name.split(".")[0] in blocks}


def write(name, tensors, metadata=None):
    save_file({key: value.contiguous() for key, value in tensors.items()}, ROOT / "adapters" / f"{name}.safetensors", metadata)


def dotted(modules, prefix, down, up, with_alpha, flatten=False):
    tensors = {}
    for module, (a, b) in modules.items():
        key = prefix + (module.replace(".", "_") if flatten else module)
        tensors |= {f"{key}.{down}.weight": a, f"{key}.{up}.weight": b}
        if with_alpha:
            tensors[f"{key}.alpha"] = torch.tensor(ALPHA)
    return tensors


def families():
    """Yields pipeline folder, class of the pipeline, class of the transformer, lists of blocks, and the forms of its files."""
    peft_names = {"down": "lora_A", "up": "lora_B"}
    kohya_names = {"down": "lora_down", "up": "lora_up"}
    yield "z_image_base", diffusers.ZImagePipeline, diffusers.ZImageTransformer2DModel, ("layers", "noise_refiner", "context_refiner"), {
        "diffusers": dict(prefix="transformer.", with_alpha=False, **peft_names),
        "comfy": dict(prefix="diffusion_model.", with_alpha=False, **peft_names),
        "kohya": dict(prefix="lora_unet_", with_alpha=True, flatten=True, **kohya_names)}
    yield "qwen_image", diffusers.QwenImagePipeline, diffusers.QwenImageTransformer2DModel, ("transformer_blocks",), {
        "diffusers": dict(prefix="transformer.", with_alpha=False, **peft_names),
        "comfy": dict(prefix="diffusion_model.", with_alpha=False, **peft_names),
        "lightning": dict(prefix="", with_alpha=True, **kohya_names),
        "kohya": dict(prefix="lora_unet_", with_alpha=True, flatten=True, **kohya_names)}
    yield "flux2_klein", diffusers.Flux2KleinPipeline, diffusers.Flux2Transformer2DModel, ("transformer_blocks", "single_transformer_blocks"), {
        "diffusers": dict(prefix="transformer.", with_alpha=False, **peft_names),
        "bfl": dict(prefix="diffusion_model.", with_alpha=False, **peft_names),
        "peft_bfl": dict(prefix="base_model.model.", with_alpha=False, **peft_names)}


def original(modules, generator):
    """The same modules under the authors' names; the parts of a packed one share its first factor."""
    renamed = {}
    for name, parts in FLUX2.items():
        for block in range(64):
            found = [part.format(block) for part in parts]
            if found[0] not in modules:
                break
            a = modules[found[0]][0]
            renamed[name.format(block)] = (a, torch.cat([modules[part][1] for part in found]))
    return renamed


def loaded(pipeline, transformer_class, folder, path):
    """What diffusers makes of a file: the change of each module, in fp64; and why it reads none, if so."""
    transformer = transformer_class.from_pretrained(folder / "transformer", torch_dtype=torch.float64)
    try:
        state, metadata = pipeline.lora_state_dict(str(path), return_lora_metadata=True)
        transformer.load_lora_adapter(state, prefix="transformer", adapter_name="a", metadata=metadata)
    except Exception as error:  # the library has no such form
        return {}, f"{type(error).__name__}: {str(error)[:120]}"
    deltas = {name: module.get_delta_weight("a").double() for name, module in transformer.named_modules()
              if hasattr(module, "get_delta_weight") and "a" in module.lora_A}
    return {name: delta.detach() for name, delta in deltas.items()}, ""


def main():
    (ROOT / "adapters").mkdir(exist_ok=True)
    cases = []
    for number, (folder, pipeline, transformer_class, blocks, forms) in enumerate(families()):
        path = NEWER / "pipelines" / folder
        transformer = transformer_class.from_pretrained(path / "transformer")
        generator = torch.Generator().manual_seed(50 + number)
        modules = {name: pair(generator, module.out_features, module.in_features)
                   for name, module in targets_of(transformer, blocks).items()}
        for form, options in forms.items():
            is_original = "bfl" in form
            named = original(modules, generator) if is_original else modules
            name = f"{folder}_{form}"
            write(name, dotted(named, **options))
            file = ROOT / "adapters" / f"{name}.safetensors"
            scale = ALPHA / RANK if options["with_alpha"] else 1.0
            own = {}
            if is_original:
                for key, parts in FLUX2.items():
                    for block in range(64):
                        if key.format(block) not in named:
                            break
                        a, b = named[key.format(block)]
                        rows = b.shape[0] // len(parts)
                        for i, part in enumerate(parts):
                            own[part.format(block)] = scale * b[i * rows:(i + 1) * rows].double() @ a.double()
            else:
                own = {module: scale * b.double() @ a.double() for module, (a, b) in modules.items()}
            library, why = loaded(pipeline, transformer_class, path, file)
            if library:
                assert library.keys() == own.keys(), (name, library.keys() ^ own.keys())
                worst = max((library[key] - own[key]).abs().max().item() for key in own)
                assert worst < 1e-6, (name, worst)  # the library rounds alpha or the factors to fp32
            golden = {f"fingerprint.transformer.{module}": fingerprint(delta) for module, delta in own.items()}
            for module in sorted(own, key=lambda module: own[module].numel())[:1]:
                golden[f"delta.transformer.{module}"] = own[module]
            save_file({key: value.contiguous() for key, value in golden.items()}, ROOT / "adapters" / f"{name}.golden.safetensors")
            cases.append({"file": f"adapters/{name}.golden.safetensors", "kind": "adapter",
                          "arguments": {"folder": f"../golden-newer/pipelines/{folder}", "pipeline": pipeline.__name__,
                                        "adapter": f"adapters/{name}.safetensors", "format": form,
                                        "inputs": f"../golden-newer/transformers/{folder}.0.f32.safetensors", "scales": [],
                                        "components": ["transformer"], "modules": len(own), "reference": "library" if library else f"own ({why})"},
                          "tolerance": {"fp64": 1e-10, "fp32": 1e-4}})
            print(name, len(own), "modules;", "as diffusers reads it" if library else f"diffusers: {why}")
    versions = {"diffusers": diffusers.__version__, "peft": peft.__version__, "torch": torch.__version__}
    (ROOT / "cases.json").write_text(json.dumps({"versions": versions, "seed": 50, "preset": "newer-adapters", "cases": cases}, indent=1) + "\n")


main()
