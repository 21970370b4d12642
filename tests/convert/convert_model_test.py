"""Follows the advice of the errors about foreign weights: python convert_model_test.py TESSERA ROOT

Converts golden pipelines to foreign forms (pickles, quantized weights, single files, GGUF, LoRA), lets `tessera inspect`
refuse them, runs the command of the error, and compares the picture of the new folder with that of the right weights.
"""

import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

import bitsandbytes
import gguf
import numpy
import torch
from safetensors.torch import load_file, save_file

TESSERA, ROOT = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
GOLDEN = ROOT / "tests/golden/pipelines"
TRANSFORMER = "transformer/diffusion_pytorch_model.safetensors"


def run(*command):
    return subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True)


def transformer_of(folder):
    tensors = {}
    for path in sorted((folder / "transformer").glob("*.safetensors")):
        tensors.update(load_file(path))
    return tensors


def write_transformer(folder, tensors):
    for path in (folder / "transformer").glob("*.safetensors*"):
        path.unlink()
    save_file(tensors, folder / TRANSFORMER, metadata={"format": "pt"})


def is_matrix(name, tensor):
    return name.endswith(".weight") and tensor.dim() == 2 and "pos_embed" not in name


# Names of Stable Diffusion 3's transformer as its authors publish it, and of what diffusers makes of it.
def sd3_as_published(tensors, blocks):
    out = {}

    def swapped(tensor):  # scale and shift are in the other order
        first, second = tensor.chunk(2)
        return torch.cat([second, first])

    def put(published, *parts, change=lambda t: t):
        out["model.diffusion_model." + published] = change(torch.cat([tensors[p] for p in parts]))

    out["model.diffusion_model.pos_embed"] = tensors["pos_embed.pos_embed"]
    for kind in ("weight", "bias"):
        for published, name in {
            "x_embedder.proj": "pos_embed.proj",
            "t_embedder.mlp.0": "time_text_embed.timestep_embedder.linear_1",
            "t_embedder.mlp.2": "time_text_embed.timestep_embedder.linear_2",
            "y_embedder.mlp.0": "time_text_embed.text_embedder.linear_1",
            "y_embedder.mlp.2": "time_text_embed.text_embedder.linear_2",
            "context_embedder": "context_embedder",
            "final_layer.linear": "proj_out",
        }.items():
            put(f"{published}.{kind}", f"{name}.{kind}")
        put(f"final_layer.adaLN_modulation.1.{kind}", f"norm_out.linear.{kind}", change=swapped)
        for i in range(blocks):
            there, here = f"joint_blocks.{i}", f"transformer_blocks.{i}"
            last = i + 1 == blocks
            put(f"{there}.x_block.attn.qkv.{kind}", *[f"{here}.attn.to_{x}.{kind}" for x in "qkv"])
            put(f"{there}.context_block.attn.qkv.{kind}", *[f"{here}.attn.add_{x}_proj.{kind}" for x in "qkv"])
            put(f"{there}.x_block.attn.proj.{kind}", f"{here}.attn.to_out.0.{kind}")
            put(f"{there}.x_block.adaLN_modulation.1.{kind}", f"{here}.norm1.linear.{kind}")
            put(f"{there}.context_block.adaLN_modulation.1.{kind}", f"{here}.norm1_context.linear.{kind}",
                change=swapped if last else lambda t: t)
            put(f"{there}.x_block.mlp.fc1.{kind}", f"{here}.ff.net.0.proj.{kind}")
            put(f"{there}.x_block.mlp.fc2.{kind}", f"{here}.ff.net.2.{kind}")
            if not last:
                put(f"{there}.context_block.attn.proj.{kind}", f"{here}.attn.to_add_out.{kind}")
                put(f"{there}.context_block.mlp.fc1.{kind}", f"{here}.ff_context.net.0.proj.{kind}")
                put(f"{there}.context_block.mlp.fc2.{kind}", f"{here}.ff_context.net.2.{kind}")
    return out


class ConvertModelTest(unittest.TestCase):
    def setUp(self):
        self.work = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.work)

    def copy(self, pipeline):
        shutil.copytree(GOLDEN / pipeline, self.work / "model")
        for path in (self.work / "model").rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        return self.work / "model"

    def picture(self, model):
        path = self.work / f"{len(list(self.work.glob('*.png')))}.png"
        made = run(TESSERA, "generate", "red apple", "--model", model, "--size", "64x64", "--steps", "2", "--seed", "1",
                   "-q", "-o", path)
        self.assertEqual(made.returncode, 0, made.stderr)
        return path.read_bytes().split(b"IDAT", 1)[1]  # without the parameters, which name the model

    def advice(self, path, *said):
        """The command of the error that `tessera inspect` gives."""
        refused = run(TESSERA, "inspect", path)
        self.assertEqual(refused.returncode, 3, refused.stdout)
        for text in said:
            self.assertIn(text, refused.stderr)
        command = re.search(r"python3 scripts/convert-model\.py [^,\n]*", refused.stderr)
        self.assertIsNotNone(command, refused.stderr)
        return shlex.split(command[0].strip())

    def follow(self, command, base=None):
        output = self.work / "converted"
        words = [sys.executable, *command[1:]]
        for i, word in enumerate(words):
            if word == "MODEL":
                words[i] = str(base if i > 0 and words[i - 1] == "--base" else self.work / "model")
        words[3] = str(output)
        done = run(*words)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return output

    def test_pickles(self):
        model = self.copy("pixart_sigma")
        right = self.picture(model)
        for component in ("transformer", "text_encoder", "vae"):
            for path in sorted((model / component).glob("*.safetensors")):
                name = "diffusion_pytorch_model.bin" if component != "text_encoder" else "pytorch_model.bin"
                torch.save(load_file(path), model / component / name)
                path.unlink()
            for path in (model / component).glob("*.index.json"):
                path.unlink()
        command = self.advice(model, "PyTorch pickles")
        self.assertEqual(self.picture(self.follow(command)), right)

    def quantized(self, form, pack, said):
        model = self.copy("pixart_sigma")
        tensors, right, packed = {}, {}, 0
        for name, tensor in transformer_of(model).items():
            # bitsandbytes 0.50 unpacks rows with partial blocks wrongly on a CPU.
            if is_matrix(name, tensor) and tensor.shape[1] % 64 == 0:
                packed += 1
                pack(name, tensor.float(), tensors, right)
            else:
                tensors[name] = right[name] = tensor
        self.assertGreater(packed, 5)
        write_transformer(model, tensors)
        config = json.loads((model / "transformer/config.json").read_text())
        config["quantization_config"] = {"quant_method": "bitsandbytes"}
        (model / "transformer/config.json").write_text(json.dumps(config))
        command = self.advice(model, said)
        converted = self.follow(command)
        found = load_file(converted / TRANSFORMER)
        self.assertEqual(set(found), set(right))
        for name, tensor in right.items():
            self.assertLessEqual((found[name].float() - tensor.float()).abs().max().item(),
                                 2**-8 * tensor.float().abs().max().item(), name)
        self.picture(converted)

    # Weights that bitsandbytes itself packs and unpacks.
    def four_bits(self, form, nested):
        def pack(name, weight, tensors, right):
            packed, state = bitsandbytes.functional.quantize_4bit(weight, quant_type=form, compress_statistics=nested)
            tensors[name] = packed
            for key, value in state.as_dict(packed=True).items():
                tensors[f"{name}.{key}"] = value
            right[name] = bitsandbytes.functional.dequantize_4bit(packed, state)

        self.quantized(form, pack, f"weights in {form} (bitsandbytes)")

    def test_nf4(self):
        self.four_bits("nf4", nested=False)

    def test_nf4_with_packed_scales(self):
        self.four_bits("nf4", nested=True)

    def test_fp4(self):
        self.four_bits("fp4", nested=False)

    def test_int8(self):
        def pack(name, weight, tensors, right):
            packed, scales, _ = bitsandbytes.functional.int8_vectorwise_quant(weight.half())
            tensors[name], tensors[name.removesuffix(".weight") + ".SCB"] = packed, scales
            right[name] = bitsandbytes.functional.int8_vectorwise_dequant(packed, scales)

        self.quantized("int8", pack, "weights in int8 (bitsandbytes)")

    def test_fp8_with_scales(self):
        def pack(name, weight, tensors, right):
            scale = weight.abs().max() / 448
            tensors[name] = (weight / scale).to(torch.float8_e4m3fn)
            tensors[name.removesuffix("weight") + "scale_weight"] = scale
            right[name] = tensors[name].float() * scale

        self.quantized("fp8", pack, "weights in fp8 with scales")

    def test_fp8(self):
        def pack(name, weight, tensors, right):
            tensors[name] = weight.to(torch.float8_e4m3fn)
            right[name] = tensors[name].float()

        self.quantized("fp8", pack, "weights in fp8, and")

    def published_sd3(self):
        model = self.copy("sd3")
        tensors = transformer_of(model)
        blocks = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("transformer_blocks."))
        return model, tensors, sd3_as_published(tensors, blocks)

    def test_single_file(self):
        model, tensors, published = self.published_sd3()
        file = self.work / "it's one.safetensors"
        save_file(published, file)
        command = self.advice(file, "is a single-file checkpoint of Stable Diffusion 3, and")
        converted = self.follow(command, base=model)
        found = transformer_of(converted)
        self.assertEqual(set(found), set(tensors))
        for name, tensor in tensors.items():
            self.assertTrue(torch.equal(found[name], tensor), name)
        self.assertEqual(self.picture(converted), self.picture(model))

    def test_gguf(self):
        model, tensors, published = self.published_sd3()
        file = self.work / "sd3-q8.gguf"
        writer = gguf.GGUFWriter(file, "sd3")
        for name, tensor in published.items():
            name, values = name.removeprefix("model.diffusion_model."), tensor.float().numpy()
            if values.ndim == 2 and values.shape[1] % 32 == 0:
                writer.add_tensor(name, gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0),
                                  raw_dtype=gguf.GGMLQuantizationType.Q8_0)
            else:
                writer.add_tensor(name, numpy.ascontiguousarray(values))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        command = self.advice(file, "is a GGUF file")
        found = transformer_of(self.follow(command, base=model))
        self.assertEqual(set(found), set(tensors))
        for name, tensor in tensors.items():  # 8 bits a weight, then bf16
            self.assertLessEqual((found[name].float() - tensor).abs().max().item(), 2**-6 * tensor.abs().max().item(), name)
        self.picture(self.work / "converted")

    def test_lora(self):
        model = self.copy("sd3")
        tensors = transformer_of(model)
        generator, lora, right = torch.Generator().manual_seed(1), {}, dict(tensors)
        for name in [n for n in tensors if n.endswith(("attn.to_q.weight", "attn.to_v.weight"))]:
            wide, high = tensors[name].shape[1], tensors[name].shape[0]
            down, up = (torch.randn(shape, generator=generator) for shape in ((4, wide), (high, 4)))
            scope = "transformer." + name.removesuffix(".weight")
            lora[f"{scope}.lora_A.weight"], lora[f"{scope}.lora_B.weight"] = down, up
            right[name] = tensors[name] + up @ down
        file = self.work / "style.safetensors"
        save_file(lora, file)
        command = self.advice(file, "is a LoRA")
        converted = self.follow(command, base=model)
        found = transformer_of(converted)
        for name, tensor in right.items():
            self.assertLess((found[name] - tensor).abs().max().item(), 1e-5 * max(1, tensor.abs().max().item()), name)
        self.picture(converted)

    def test_hub_command(self):
        # The only command that needs the hub: checks that its program accepts it.
        program = pathlib.Path(sys.executable).parent / "hf"
        shown = run(program, "download", "--help")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn("REPO_ID", shown.stdout.upper())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
