"""Model folders for measurements: a golden pipeline whose transformer has the full size of a published model.

Nothing has to be downloaded: weights are zeros that take no space on the disk, or random numbers with the spread of trained
weights; text encoders and autoencoder are the golden ones. A device multiplies zeros faster than other numbers,
because they take less power, but does not exchange them faster.
"""

import json
import os
import pathlib
import shutil

TEXT, SD3_TEXT, SD3_POOLED = 32, 96, 80  # widths of the golden text encoders' outputs
SHARD_BYTES = 9_990_000_000


def linear(name, out, into):
    return [(f"{name}.weight", (out, into)), (f"{name}.bias", (out,))]


def embedder(name, out, into):
    return linear(f"{name}.linear_1", out, into) + linear(f"{name}.linear_2", out, out)


def feed_forward(name, width):
    return linear(f"{name}.net.0.proj", 4 * width, width) + linear(f"{name}.net.2", width, 4 * width)


def attention(name, width, projections, norms, head_dim):
    tensors = [tensor for projection in projections for tensor in linear(f"{name}.{projection}", width, width)]
    return tensors + [(f"{name}.{norm}.weight", (head_dim,)) for norm in norms]


IMAGE, ADDED = ("to_q", "to_k", "to_v"), ("add_q_proj", "add_k_proj", "add_v_proj")


def flux_transformer():
    width, head_dim = 3072, 128
    yield from linear("x_embedder", width, 64)
    yield from linear("context_embedder", width, TEXT)
    for name, into in (("timestep", 256), ("guidance", 256), ("text", TEXT)):
        yield from embedder(f"time_text_embed.{name}_embedder", width, into)
    for block in (f"transformer_blocks.{i}" for i in range(19)):
        for name in ("norm1", "norm1_context"):
            yield from linear(f"{block}.{name}.linear", 6 * width, width)
        yield from attention(f"{block}.attn", width, IMAGE + ADDED + ("to_out.0", "to_add_out"),
                             ("norm_q", "norm_k", "norm_added_q", "norm_added_k"), head_dim)
        yield from feed_forward(f"{block}.ff", width)
        yield from feed_forward(f"{block}.ff_context", width)
    for block in (f"single_transformer_blocks.{i}" for i in range(38)):
        yield from linear(f"{block}.norm.linear", 3 * width, width)
        yield from linear(f"{block}.proj_mlp", 4 * width, width)
        yield from linear(f"{block}.proj_out", width, 5 * width)
        yield from attention(f"{block}.attn", width, IMAGE, ("norm_q", "norm_k"), head_dim)
    yield from linear("norm_out.linear", 2 * width, width)
    yield from linear("proj_out", 64, width)


def sd3_transformer(blocks=24):
    width = 64 * blocks
    yield "pos_embed.pos_embed", (1, 192 * 192, width)
    yield "pos_embed.proj.weight", (width, 16, 2, 2)
    yield "pos_embed.proj.bias", (width,)
    yield from linear("context_embedder", width, SD3_TEXT)
    yield from embedder("time_text_embed.timestep_embedder", width, 256)
    yield from embedder("time_text_embed.text_embedder", width, SD3_POOLED)
    for i in range(blocks):
        block, last = f"transformer_blocks.{i}", i == blocks - 1
        yield from linear(f"{block}.norm1.linear", 6 * width, width)
        yield from linear(f"{block}.norm1_context.linear", (2 if last else 6) * width, width)
        outputs = ("to_out.0",) if last else ("to_out.0", "to_add_out")
        yield from attention(f"{block}.attn", width, IMAGE + ADDED + outputs, (), 64)
        yield from feed_forward(f"{block}.ff", width)
        if not last:
            yield from feed_forward(f"{block}.ff_context", width)
    yield from linear("norm_out.linear", 2 * width, width)
    yield from linear("proj_out", 64, width)


# By name: the golden pipeline, the tensors, and the differences in the transformer's configuration.
MODELS = {
    "flux_dev": ("flux_dev", flux_transformer,
                 {"attention_head_dim": 128, "num_attention_heads": 24, "num_layers": 19, "num_single_layers": 38,
                  "axes_dims_rope": [16, 56, 56]}),
    "sd3_medium": ("sd3", sd3_transformer,
                   {"attention_head_dim": 64, "num_attention_heads": 24, "num_layers": 24, "caption_projection_dim": 1536,
                    "pos_embed_max_size": 192, "sample_size": 128}),
}


def byte_count(shape):
    count = 2  # bytes of a number in bf16
    for size in shape:
        count *= size
    return count


class RandomWeights:
    """bf16 numbers of either sign between 0.0005 and 0.03, which Python's standard library generates fast enough."""

    POOL = 1 << 26  # bytes; each tensor takes a part that begins at a different offset
    ONE = b"\x80\x3f"

    def __init__(self):
        # The high byte of bf16 holds the sign and seven bits of the exponent; 60 is 2^-7 to 2^-5.
        high = bytes((byte & 0x80) | (60 if byte & 0x60 else 59 if byte & 0x10 else 58) for byte in range(256))
        self.pool = bytearray(self.POOL)
        self.pool[0::2] = os.urandom(self.POOL // 2)
        self.pool[1::2] = os.urandom(self.POOL // 2).translate(high)
        self.at = 0

    def write(self, file, name, count):
        """Writes `count` bytes of the tensor; the weights of norms are ones."""
        if ".norm_" in name and name.endswith(".weight") and count < 1024:
            file.write(self.ONE * (count // 2))
            return
        self.at = (self.at + 2 * 7919) % self.POOL
        view = memoryview(self.pool)
        while count > 0:
            part = min(count, self.POOL - self.at)
            file.write(view[self.at:self.at + part])
            self.at = (self.at + part) % self.POOL
            count -= part


def write_file(path, tensors, weights=None):
    header, end = {}, 0
    for name, shape in tensors:
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + byte_count(shape)]}
        end += byte_count(shape)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        if weights is None:
            file.truncate(8 + len(text) + end)
        else:
            for tensor, shape in tensors:
                weights.write(file, tensor, byte_count(shape))


def write_model(name, goldens, folder, random=False):
    """Writes one of MODELS into a new folder. `goldens` is tests/golden of a clone; `random` weights take disk space."""
    weights = RandomWeights() if random else None
    golden, tensors, changes = MODELS[name]
    shutil.copytree(pathlib.Path(goldens, "pipelines", golden), folder)
    transformer = pathlib.Path(folder, "transformer")
    config = json.loads((transformer / "config.json").read_text())
    for file in transformer.iterdir():
        file.unlink()
    (transformer / "config.json").write_text(json.dumps({**config, **changes}))
    shards, room = [[]], SHARD_BYTES
    for tensor in tensors():
        if byte_count(tensor[1]) > room:
            shards.append([])
            room = SHARD_BYTES
        shards[-1].append(tensor)
        room -= byte_count(tensor[1])
    stem, places = "diffusion_pytorch_model", {}
    for number, shard in enumerate(shards, 1):
        file = f"{stem}.safetensors" if len(shards) == 1 else f"{stem}-{number}-of-{len(shards)}.safetensors"
        write_file(transformer / file, shard, weights)
        places.update({tensor: file for tensor, _ in shard})
    if len(shards) > 1:
        (transformer / f"{stem}.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


# Disk space of each model's weights.
BYTES = {name: sum(byte_count(shape) for _, shape in tensors()) for name, (_, tensors, _) in MODELS.items()}
