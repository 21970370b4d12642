"""Four ways to use a Tessera server from Python, on the generated stubs:

    tessera_example.py ADDRESS generate PROMPT FILE       makes an image and shows how it goes
    tessera_example.py ADDRESS edit PROMPT FILE PICTURE   makes an image that begins from a picture
    tessera_example.py ADDRESS submit PROMPT FILE         leaves a job with the server and comes back for it
    tessera_example.py ADDRESS cancel PROMPT              leaves a job with the server and cancels it when it has begun

ADDRESS is HOST:PORT of the server's gRPC listener. An API key is read from the environment: TESSERA_API_KEY. The stubs
are made of proto/tessera/v1/image_service.proto; "Python over gRPC" in docs/clients.md has the commands.
"""
import os
import sys
import time
import uuid

import grpc
from tessera.v1 import image_service_pb2 as pb
from tessera.v1 import image_service_pb2_grpc as rpc

RETRIES = 8


class Client:
    def __init__(self, address, key=None):
        self.channel = grpc.insecure_channel(address, options=[("grpc.initial_reconnect_backoff_ms", 100)])
        self.stub = rpc.ImageServiceStub(self.channel)
        self.metadata = [("authorization", f"Bearer {key}")] if key else []

    def call(self, method, request, timeout=60):
        """The answer, or the list of those of a stream. Tries again what did not get through, as soon as the server says
        that it may."""
        for failures in range(RETRIES + 1):
            try:
                answer = method(request, metadata=self.metadata, timeout=timeout)
                return list(answer) if isinstance(answer, grpc.Call) else answer
            except grpc.RpcError as error:
                pause = pause_after(error, failures)
                if pause is None:
                    raise
                time.sleep(pause)

    def submit(self, image):
        # The key makes one job of a submission that has to be sent twice.
        return self.call(self.stub.Submit, pb.SubmitRequest(image=image, idempotency_key=str(uuid.uuid4())))

    def watch(self, job):
        """The events of a job until it has ended, over lost connections and restarts of the server."""
        failures = 0
        while True:
            try:
                for event in with_files(self.stub.WatchJob(pb.WatchJobRequest(id=job), metadata=self.metadata)):
                    failures = 0
                    yield event
                    if event.WhichOneof("event") == "ended":
                        return
                pause = pause_after(None, failures)
            except grpc.RpcError as error:
                pause = pause_after(error, failures)
                if pause is None:
                    raise
            if pause is None:
                raise RuntimeError("the server ended the stream of events again and again")
            failures += 1
            time.sleep(pause)


def pause_after(error, failures):
    """Seconds until a call that failed has a chance; None: it has none."""
    if failures >= RETRIES:
        return None
    pause = min(0.1 * 2**failures, 5)
    if error is None:
        return pause
    wait = dict(error.trailing_metadata() or ()).get("retry-after-ms")
    if error.code() == grpc.StatusCode.UNAVAILABLE or (error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and wait):
        return max(pause, int(wait or 0) / 1000)
    return None


def show(event):
    kind = event.WhichOneof("event")
    if kind == "accepted":
        print("accepted as", event.accepted.id, flush=True)
    elif kind == "queued":
        print("place", event.queued.position, "in the queue", flush=True)
    elif kind == "step":
        print("step", event.step.step, "of", event.step.steps, flush=True)
    elif kind == "preview":
        print("a preview of", len(event.preview.file), "bytes", flush=True)


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)
    print("wrote", path)


def with_files(events):
    """The events without parts of files: what is too large for one message is put together into its image or preview."""
    parts = []
    for event in events:
        kind = event.WhichOneof("event")
        if kind == "file_part":
            parts.append(event.file_part.data)
            continue
        if parts:
            getattr(event, kind).file = b"".join(parts)
            parts = []
        yield event


def generate(client, image, path):
    # Ending this call early, with Ctrl-C too, cancels its job.
    for event in with_files(client.stub.Generate(pb.GenerateRequest(image=image), metadata=client.metadata)):
        show(event)
        if event.WhichOneof("event") == "image":
            write(path, event.image.file)


def edit(client, image, path, picture):
    # A picture of more than about 1 MB is uploaded with POST /v1/files, and named by its file_id.
    with open(picture, "rb") as file:
        image.images.add(data=file.read())
    image.strength = 0.6  # the part of the steps that change the picture
    generate(client, image, path)


def submit(client, image, path):
    job = client.submit(image)
    print("accepted as", job.id, flush=True)
    for event in client.watch(job.id):
        show(event)
    if event.ended.state != pb.JOB_STATE_DONE:
        sys.exit(f"the job failed: {event.ended.error.message}")
    answers = client.call(client.stub.GetImage, pb.GetImageRequest(id=event.ended.images[0].id))
    write(path, b"".join(answer.file for answer in answers))


def cancel(client, image):
    image.num_inference_steps = 500  # enough to be in time
    job = client.submit(image)
    for event in client.watch(job.id):
        show(event)
        if event.WhichOneof("event") == "step":
            client.call(client.stub.CancelJob, pb.CancelJobRequest(id=job.id))
            break
    for event in client.watch(job.id):
        show(event)
    print(job.id, "ended as", pb.JobState.Name(event.ended.state))


def main():
    usage = {"generate": (generate, 5), "edit": (edit, 6), "submit": (submit, 5), "cancel": (cancel, 4)}
    run, count = usage.get(sys.argv[2] if len(sys.argv) > 2 else "", (None, 0))
    if len(sys.argv) != count:
        sys.exit(__doc__)
    client = Client(sys.argv[1], os.environ.get("TESSERA_API_KEY"))
    try:
        run(client, pb.ImageRequest(prompt=sys.argv[3], partial_images=2), *sys.argv[4:])
    except grpc.RpcError as error:
        sys.exit(error.details())


if __name__ == "__main__":
    main()
