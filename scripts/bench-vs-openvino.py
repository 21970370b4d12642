#!/usr/bin/env python3
"""Compares Tessera with OpenVINO on the CPU of one machine: seconds per denoising step.

    scripts/bench-vs-openvino.py [--family pixart|flux|sd3|z_image|flux2] [--dtype bf16|fp32] [--size 512|1024] [--blocks N]
                                 [--threads 2] [--rounds 3]

The models have random weights (bench_models.py says which), cut to 4 blocks of pixart and sd3, 3 of flux, 2 of z_image after its
refiners' 4, and 5 of flux2 (FLUX.2 klein). OpenVINO runs diffusers'
transformer as its own converter makes it, once for each shape, with INFERENCE_PRECISION_HINT as --dtype says, the latency
hint and as many threads; what is timed is the transformer alone, without guidance and sampler, which Tessera's step has. Both
programs run in turn, several rounds, each in a fresh process, on the same rows, size and text tokens; the first two runs of a process do not count.

A PixArt pads its prompt to 300 tokens and masks them, and Tessera does not read those that are masked; so OpenVINO runs twice, with
300 tokens and with the prompt's own. Of flux, sd3 and flux2 both programs read the padding as well, as the models do; z_image reads
the prompt's own tokens.

The last line of each comparison is `ratio FAMILY DTYPE SIZE VALUE`: the median over the rounds of OpenVINO's seconds at
equal text length divided by Tessera's of the same round, so above 1 Tessera is faster. --dtype and --size may be given several times. A CPU without
bf16 instructions makes OpenVINO compute in fp32, which is said with its figure.

Needs a release build (build/release).
"""

import json
import shutil
import statistics
import subprocess
import time

import bench_models
from bench_models import PROMPT, TORCH_DTYPES, last_json, model_folder, run_tessera

BLOCKS = {"pixart": 4, "flux": 3, "sd3": 4, "z_image": 2, "flux2": 5}
WARM_UP = 2


def text_lengths(arguments, dtype):
    """The text lengths in tokens for which OpenVINO is timed; the last is the one that Tessera reads."""
    if arguments.family in ("flux", "flux2"):
        return [512]
    if arguments.family == "sd3":
        return [77 + 256]
    if arguments.family == "z_image":
        from transformers import AutoTokenizer

        text = f"<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n"
        return [len(AutoTokenizer.from_pretrained(model_folder(arguments, dtype) / "tokenizer")(text).input_ids)]
    from transformers import T5Tokenizer

    return [300, len(T5Tokenizer.from_pretrained(model_folder(arguments, dtype) / "tokenizer")(PROMPT).input_ids)]


def example_inputs(family, size, tokens):
    """Inputs of one forward pass of a step: two rows with guidance (pixart, sd3), one without (the others)."""
    import torch

    side = size // 8
    if family == "flux":
        positions = torch.zeros((side // 2) ** 2, 3)
        positions[:, 1] = torch.arange(side // 2).repeat_interleave(side // 2)
        positions[:, 2] = torch.arange(side // 2).repeat(side // 2)
        return {
            "hidden_states": torch.randn(1, len(positions), 64),
            "encoder_hidden_states": torch.randn(1, tokens, 4096),
            "pooled_projections": torch.randn(1, 768),
            "timestep": torch.tensor([0.5]),
            "img_ids": positions,
            "txt_ids": torch.zeros(tokens, 3),
            "guidance": torch.tensor([3.5]),
        }
    if family == "flux2":
        positions = torch.zeros((side // 2) ** 2, 4)
        positions[:, 1] = torch.arange(side // 2).repeat_interleave(side // 2)
        positions[:, 2] = torch.arange(side // 2).repeat(side // 2)
        text_positions = torch.zeros(tokens, 4)
        text_positions[:, 3] = torch.arange(tokens)
        return {
            "hidden_states": torch.randn(1, len(positions), 128),
            "encoder_hidden_states": torch.randn(1, tokens, 3 * 2560),
            "timestep": torch.tensor([0.5]),
            "img_ids": positions,
            "txt_ids": text_positions,
        }
    if family == "z_image":
        return {"x": torch.randn(16, 1, side, side), "t": torch.tensor([0.5]), "cap_feats": torch.randn(tokens, 2560)}
    if family == "sd3":
        return {
            "hidden_states": torch.randn(2, 16, side, side),
            "encoder_hidden_states": torch.randn(2, tokens, 4096),
            "pooled_projections": torch.randn(2, 2048),
            "timestep": torch.tensor([500.0, 500.0]),
        }
    return {
        "hidden_states": torch.randn(2, 4, side, side),
        "encoder_hidden_states": torch.randn(2, tokens, 4096),
        "timestep": torch.tensor([500.0, 500.0]),
        "encoder_attention_mask": torch.ones(2, tokens),
    }


def converted_path(arguments, dtype, size, tokens):
    return model_folder(arguments, dtype) / f"openvino-{size}-{tokens}.xml"


def make_convertible(transformer):
    """Replaces the parts of diffusers' Z-Image that OpenVINO does not convert by others with the same results: padding of the images of
    a batch to the longest, of which there is one, and indexing of complex tables."""
    import torch
    from diffusers.models.transformers import transformer_z_image

    transformer_z_image.pad_sequence = lambda rows, **_: torch.stack(rows)
    embedder = transformer.rope_embedder
    complex_tables = embedder.precompute_freqs_cis(embedder.axes_dims, embedder.axes_lens, theta=embedder.theta)
    tables = [torch.view_as_real(table).contiguous() for table in complex_tables]  # [positions, d / 2, 2]
    transformer.rope_embedder = lambda ids: torch.cat([table[ids[:, axis]] for axis, table in enumerate(tables)], dim=-2)
    processor = transformer_z_image.ZSingleStreamAttnProcessor
    attend = processor.__call__

    def attend_with_pairs(self, *values, freqs_cis, **options):
        return attend(self, *values, freqs_cis=torch.view_as_complex(freqs_cis), **options)

    processor.__call__ = attend_with_pairs


def convert(arguments, dtype, size):
    """Runs inside the virtual environment; prints the text lengths as JSON. The weights are kept in fp32, the CPU plug-in rounds them."""
    import diffusers
    import openvino
    import torch

    lengths = text_lengths(arguments, dtype)
    missing = [tokens for tokens in lengths if not converted_path(arguments, dtype, size, tokens).exists()]
    if missing:
        transformers = {
            "pixart": "PixArtTransformer2DModel",
            "flux": "FluxTransformer2DModel",
            "sd3": "SD3Transformer2DModel",
            "z_image": "ZImageTransformer2DModel",
            "flux2": "Flux2Transformer2DModel",
        }
        transformer = getattr(diffusers, transformers[arguments.family]).from_pretrained(
            model_folder(arguments, dtype) / "transformer", torch_dtype=torch.float32
        )
        transformer.eval()
        if arguments.family == "z_image":
            make_convertible(transformer)

        class Forward(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.transformer = transformer

            def forward(self, *values):
                named = dict(zip(inputs, values))
                if arguments.family == "pixart":
                    named["added_cond_kwargs"] = {"resolution": None, "aspect_ratio": None}
                if arguments.family == "z_image":  # a list of images and one of texts
                    named |= {"x": [named["x"]], "cap_feats": [named["cap_feats"]]}
                    return self.transformer(**named, return_dict=False)[0][0]
                return self.transformer(**named, return_dict=False)[0]

        for tokens in missing:
            torch.manual_seed(0)
            inputs = example_inputs(arguments.family, size, tokens)
            forward = Forward()
            with torch.no_grad():
                forward(*inputs.values())  # what the transformer caches of its first pass is no part of what is traced
                model = openvino.convert_model(
                    forward, example_input=tuple(inputs.values()), input=[list(value.shape) for value in inputs.values()]
                )
            unfinished = converted_path(arguments, dtype, size, f"{tokens}-unfinished")
            openvino.save_model(model, unfinished, compress_to_fp16=False)
            path = converted_path(arguments, dtype, size, tokens)
            shutil.move(unfinished.with_suffix(".bin"), path.with_suffix(".bin"))
            shutil.move(unfinished, path)
            del model
    print(json.dumps({"text_lengths": lengths}))


def run_peer(arguments, dtype, size):
    """Runs inside the virtual environment; prints one JSON object: for each text length the seconds of a pass."""
    import openvino
    import torch

    core = openvino.Core()
    figures = []
    for tokens in text_lengths(arguments, dtype):
        compiled = core.compile_model(
            core.read_model(converted_path(arguments, dtype, size, tokens)),
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": "bf16" if dtype == "bf16" else "f32",
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_NUM_THREADS": arguments.threads,
            },
        )
        torch.manual_seed(1)
        values = [value.numpy() for value in example_inputs(arguments.family, size, tokens).values()]
        request = compiled.create_infer_request()
        seconds = []
        for run in range(WARM_UP + arguments.steps):
            begun = time.perf_counter()
            request.infer(values, share_inputs=True, share_outputs=True)
            if run >= WARM_UP:
                seconds.append(time.perf_counter() - begun)
        precision = str(compiled.get_property("INFERENCE_PRECISION_HINT")).strip("<>").split("'")[1]
        figures.append({"tokens": tokens, "seconds": statistics.median(seconds), "precision": precision})
        del request, compiled
    print(json.dumps({"figures": figures}))


def run_in_environment(python, arguments, task, dtype, size):
    command = [python, __file__, f"--task={task}", f"--dtype={dtype}", f"--size={size}", f"--folder={arguments.folder}"]
    command += [f"--{name}={getattr(arguments, name)}" for name in ("family", "blocks", "threads", "steps")]
    return last_json(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def compare(python, arguments, dtype, size):
    run_in_environment(python, arguments, "convert", dtype, size)
    ratios = []
    for number in range(arguments.rounds):
        figures = run_in_environment(python, arguments, "peer", dtype, size)["figures"]
        own = run_tessera(arguments, dtype, size)["seconds"]
        ratios.append(figures[-1]["seconds"] / own)
        peers = ", ".join(f"{item['seconds']:.3f} s ({item['tokens']} tokens, {item['precision']})" for item in figures)
        print(f"round {number + 1}: openvino {peers}, tessera {own:.3f} s per step, ratio {ratios[-1]:.3f}", flush=True)
    print(f"ratios {arguments.family} {dtype} {size}: {min(ratios):.3f} to {max(ratios):.3f}")
    print(f"ratio {arguments.family} {dtype} {size} {statistics.median(ratios):.3f}", flush=True)


def main():
    arguments = bench_models.parse_arguments(__doc__, BLOCKS, ["convert", "peer"], BLOCKS)
    dtype, size = arguments.dtype[0], arguments.size[0]
    if arguments.task == "make":
        return bench_models.make_model(arguments, dtype)
    if arguments.task == "convert":
        return convert(arguments, dtype, size)
    if arguments.task == "peer":
        return run_peer(arguments, dtype, size)
    python = bench_models.ensure_environment()
    for dtype in arguments.dtype:
        bench_models.ensure_model(python, __file__, arguments, dtype)
        for size in arguments.size:
            bench_models.set_native_size(arguments, dtype, size)
            compare(python, arguments, dtype, size)


if __name__ == "__main__":
    main()
