"""Client code of other image servers, as their wheels have it, against a server that reads their fields.

foreign_client_tests.py TESSERA SGLANG_WHEEL VLLM_OMNI_WHEEL
"""
import ast
import asyncio
import base64
import collections.abc
import dataclasses
import io
import logging
import os
import sys
import time
import types
import typing
import unittest
import unittest.mock
import zipfile

import aiohttp
import PIL.Image
import requests

from fake_server import Server

TESSERA, SGLANG, VLLM_OMNI = map(os.path.abspath, sys.argv[1:4])
SGLANG_API = "sglang/multimodal_gen/apps/ComfyUI_SGLDiffusion/core/server_api.py"
VLLM_OMNI_LOAD = "vllm_omni/benchmarks/patch/patch.py"


def source(wheel, name):
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name).decode()


def sglang_api():
    module = types.ModuleType("server_api")
    exec(compile(source(SGLANG, SGLANG_API), SGLANG_API, "exec"), module.__dict__)
    return module.SGLDiffusionServerAPI


@dataclasses.dataclass
class RequestFuncInput:
    """What vLLM's load client passes to the function of an API."""
    prompt: str
    api_url: str
    extra_body: dict
    model: str = "fake"
    model_name: str = ""
    prompt_len: int = 1
    extra_headers: dict = None
    request_id: str = ""


@dataclasses.dataclass
class RequestFuncOutput:
    success: bool = False
    error: str = ""
    latency: float = 0.0


def vllm_omni_request():
    """The function that sends the load client's requests for pictures, with the functions of its module that it calls.
    The module itself imports vLLM, which needs a GPU's libraries."""
    tree = ast.parse(source(VLLM_OMNI, VLLM_OMNI_LOAD))
    defined = {node.name: node for node in tree.body
               if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}
    module = sys.modules["patch"] = types.ModuleType("patch")  # where dataclasses look for the names in annotations
    module.__dict__.update(
        aiohttp=aiohttp, base64=base64, io=io, os=os, sys=sys, time=time, traceback=__import__("traceback"),
        dataclass=dataclasses.dataclass, Any=typing.Any, Mapping=collections.abc.Mapping, Image=PIL.Image,
        Iterator=collections.abc.Iterator, Iterable=collections.abc.Iterable,
        logger=logging.getLogger("patch"), tqdm=None, RequestFuncInput=RequestFuncInput,
        RequestFuncOutput=RequestFuncOutput, _validate_api_url=lambda *arguments: None,
        _update_headers_common=lambda *arguments: None, coerce_positive_float_scalar=lambda value: None,
        coerce_positive_int_scalar=lambda value: None, defs=unittest.mock.MagicMock())
    wanted, taken = ["async_request_openai_image_generations_omni"], {}
    while wanted:
        name = wanted.pop()
        if name in taken or name not in defined:
            continue
        taken[name] = defined[name]
        wanted += [node.id for node in ast.walk(defined[name]) if isinstance(node, ast.Name)]
    nodes = sorted(taken.values(), key=lambda node: node.lineno)
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module(future + nodes, []), VLLM_OMNI_LOAD, "exec"), module.__dict__)
    return module.async_request_openai_image_generations_omni


class ForeignClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(TESSERA, "clients: [sglang, vllm-omni, sd-cpp]\n")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_sglangs_api_for_comfyui_gets_its_pictures(self):
        api = sglang_api()(self.server.url)
        answer = api.generate_image("red apple", width=64, height=32, n=2, num_inference_steps=3, guidance_scale=4.0, seed=5)
        pictures = [PIL.Image.open(io.BytesIO(base64.b64decode(each["b64_json"]))) for each in answer["data"]]
        self.assertEqual([picture.size for picture in pictures], [(64, 32)] * 2)

    def load(self, server, extra_body):
        async def run():
            async with aiohttp.ClientSession() as session:
                return await vllm_omni_request()(
                    RequestFuncInput("red apple", f"{server.url}/v1/images/generations", extra_body), session)
        return asyncio.run(run())

    def test_vllm_omnis_load_client_gets_its_pictures(self):
        output = self.load(self.server, {"width": 64, "height": 32, "num_outputs_per_prompt": 2, "seed": 1,
                                         "num_inference_steps": 3, "generator_device": "cpu", "vae_use_tiling": True,
                                         "return_stage_metrics": True})
        self.assertTrue(output.success, output.error)
        self.assertEqual((output.image_count, output.image_pixels), (2, 2 * 64 * 32))

    def test_without_the_configuration_their_fields_are_refused(self):
        server = Server(TESSERA)
        try:
            output = self.load(server, {"return_stage_metrics": True})
            self.assertFalse(output.success)
            self.assertIn("return_stage_metrics", output.error)
            with self.assertRaisesRegex(RuntimeError, "400"):
                sglang_api()(server.url).generate_image("red apple")
        finally:
            server.stop()

    def test_the_prompt_that_sd_cpps_documentation_shows(self):
        prompt = 'normal prompt text <sd_cpp_extra_args>{"sample_params":{"sample_steps":28}}</sd_cpp_extra_args>'
        answer = requests.post(f"{self.server.url}/v1/images/generations",
                               json={"prompt": prompt, "n": 1, "size": "64x64", "output_format": "png"}, timeout=60)
        self.assertEqual(answer.status_code, 200, answer.text)
        text = PIL.Image.open(io.BytesIO(base64.b64decode(answer.json()["data"][0]["b64_json"]))).info["parameters"]
        self.assertTrue(text.startswith("normal prompt text\n"), text)
        self.assertIn("Steps: 28", text)


unittest.main(argv=sys.argv[:1])
