"""The messages of `tessera serve` with `tracing`, read with OpenTelemetry's own definition of the protocol.
scripts/client-tests.sh runs it.

otlp_tests.py TESSERA GENERATED_STUBS
"""
import base64
import http.server
import json
import sys
import threading
import unittest
import urllib.request

import grpc
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

import fake_server

TESSERA, STUBS = sys.argv[1:3]
sys.path.insert(0, STUBS)
from tessera.v1 import image_service_pb2 as pb  # noqa: E402
from tessera.v1 import image_service_pb2_grpc as rpc  # noqa: E402

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"


class Receiver:
    """Answers 503 to the first message, and keeps the others."""

    def __init__(self):
        self.paths, self.types, self.messages, self.refused = set(), set(), [], 0
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.paths.add(self.path)
                receiver.types.add(self.headers["Content-Type"])
                status = 200 if receiver.refused else 503
                if status == 200:
                    receiver.messages.append(body)
                else:
                    receiver.refused += 1
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def spans(self):
        """All spans, as messages of the protocol. Its JSON has ids in hexadecimal, where Protobuf's JSON has base64."""
        spans = []
        for text in self.messages:
            message = json.loads(text)
            for resource in message["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    for span in scope["spans"]:
                        for name in ("traceId", "spanId", "parentSpanId"):
                            if name in span:
                                span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
            request = json_format.ParseDict(message, trace_service_pb2.ExportTraceServiceRequest())
            for resource in request.resource_spans:
                names = {item.key: item.value.string_value for item in resource.resource.attributes}
                assert names["service.name"] == "studio", names
                for scope in resource.scope_spans:
                    spans.extend(scope.spans)
        return spans


def attributes(span):
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes}


class Spans(unittest.TestCase):
    def test_a_receiver_reads_calls_and_images_in_the_callers_trace(self):
        receiver = Receiver()
        server = fake_server.Server(TESSERA, f"tracing: {{endpoint: '{receiver.url}', service_name: studio, interval: 50ms}}")
        header = f"00-{TRACE}-{CALLER}-01"
        request = urllib.request.Request(f"{server.url}/v1/images/generations", json.dumps({"prompt": "secret"}).encode(),
                                         {"Content-Type": "application/json", "traceparent": header})
        self.assertEqual(urllib.request.urlopen(request, timeout=60).status, 200)
        with grpc.insecure_channel(f"127.0.0.1:{server.ports['grpc']}") as channel:
            stub = rpc.ImageServiceStub(channel)
            list(stub.Generate(pb.GenerateRequest(image=pb.ImageRequest(prompt="secret")), timeout=60,
                               metadata=[("traceparent", header)]))
        server.stop()
        self.assertEqual(receiver.paths, {"/v1/traces"})
        self.assertEqual(receiver.types, {"application/json"})
        self.assertEqual(receiver.refused, 1)
        self.assertNotIn(b"secret", b"".join(receiver.messages))
        spans = [span for span in receiver.spans() if span.trace_id.hex() == TRACE]
        calls = {span.name: span for span in spans if span.kind == trace_pb2.Span.SPAN_KIND_SERVER}
        self.assertEqual(set(calls), {"POST /v1/images/generations", "tessera.v1.ImageService/Generate"})
        for call in calls.values():
            self.assertEqual(call.parent_span_id.hex(), CALLER)
            self.assertGreater(call.end_time_unix_nano, call.start_time_unix_nano)
            images = [span for span in spans if span.parent_span_id == call.span_id]
            self.assertEqual([image.name for image in images], ["image"])
            self.assertEqual(attributes(images[0])["tessera.model"], "fake")
            self.assertEqual(attributes(images[0])["tessera.job.id"], attributes(call)["tessera.job.id"])
            stages = {span.name: span for span in spans if span.parent_span_id == images[0].span_id}
            self.assertLessEqual({"queued", "encode", "denoise", "decode", "image encode", "store"}, set(stages))
            self.assertEqual(attributes(stages["denoise"])["tessera.steps"], attributes(images[0])["tessera.steps"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
