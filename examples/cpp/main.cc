// Four ways to use a Tessera server from C++:
//
//   tessera_example ADDRESS generate PROMPT FILE       makes an image and shows how it goes
//   tessera_example ADDRESS edit PROMPT FILE PICTURE   makes an image that begins from a picture
//   tessera_example ADDRESS submit PROMPT FILE         leaves a job with the server and comes back for it
//   tessera_example ADDRESS cancel PROMPT              leaves a job with the server and cancels it when it has begun
//
// ADDRESS is HOST:PORT of the server's HTTP listener. An API key is read from the environment: TESSERA_API_KEY.
#include <tessera/image_client.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stop_token>
#include <string>
#include <vector>

namespace {

using tessera::ImageClient;
namespace v1 = tessera::v1;

void ShowProgress(const v1::JobEvent& event) {
  switch (event.event_case()) {
    case v1::JobEvent::kAccepted:
      std::cout << "accepted as " << event.accepted().id() << std::endl;
      break;
    case v1::JobEvent::kQueued:
      std::cout << "place " << event.queued().position() << " in the queue" << std::endl;
      break;
    case v1::JobEvent::kStep:
      std::cout << "step " << event.step().step() << " of " << event.step().steps() << std::endl;
      break;
    case v1::JobEvent::kPreview:
      std::cout << "a preview of " << event.preview().file().size() << " bytes" << std::endl;
      break;
    default:
      break;
  }
}

absl::Status WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  file.close();
  if (!file) return absl::UnknownError("cannot write " + path);
  std::cout << "wrote " << path << std::endl;
  return absl::OkStatus();
}

absl::Status Generate(ImageClient& client, const v1::ImageRequest& request, const std::string& path) {
  std::string image;
  const absl::StatusOr<v1::Job> job = client.Generate(request, [&](const v1::JobEvent& event) {
    ShowProgress(event);
    if (event.has_image()) image = event.image().file();
  });
  return job.ok() ? WriteFile(path, image) : job.status();
}

absl::Status Edit(ImageClient& client, v1::ImageRequest request, const std::string& path, const std::string& picture) {
  std::ifstream file(picture, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file) return absl::NotFoundError("cannot read " + picture);
  // More requests can name the same upload. A picture of one request can also be sent with it, as `data`.
  const absl::StatusOr<std::string> id = client.UploadPicture(bytes);
  if (!id.ok()) return id.status();
  request.add_images()->set_file_id(*id);
  request.set_strength(0.6);  // the part of the steps that change the picture
  return Generate(client, request, path);
}

absl::Status Submit(ImageClient& client, const v1::ImageRequest& request, const std::string& path) {
  const absl::StatusOr<v1::Job> job = client.Submit(request);
  if (!job.ok()) return job.status();
  std::cout << "accepted as " << job->id() << std::endl;
  // From here on any process can watch it that has the id, and the server may be restarted meanwhile.
  const absl::StatusOr<v1::Job> ended = client.Watch(job->id(), ShowProgress);
  if (!ended.ok()) return ended.status();
  if (ended->state() != v1::JOB_STATE_DONE) return absl::UnknownError("the job failed: " + ended->error().message());
  const absl::StatusOr<v1::GetImageResponse> image = client.GetImage(ended->images(0).id());
  return image.ok() ? WriteFile(path, image->file()) : image.status();
}

absl::Status Cancel(ImageClient& client, v1::ImageRequest request) {
  request.set_num_inference_steps(500);  // enough to be in time
  const absl::StatusOr<v1::Job> job = client.Submit(request);
  if (!job.ok()) return job.status();
  // A stop source ends any call from any thread; the job goes on without its watcher.
  std::stop_source stop;
  const absl::StatusOr<v1::Job> watched = client.Watch(job->id(),
                                                       [&](const v1::JobEvent& event) {
                                                         ShowProgress(event);
                                                         if (event.has_step()) stop.request_stop();
                                                       },
                                                       {.stop = stop.get_token()});
  if (watched.status().code() != absl::StatusCode::kCancelled) {
    return absl::UnknownError("the job ended before it could be cancelled");
  }
  const absl::StatusOr<v1::Job> cancelled = client.Cancel(job->id());
  if (!cancelled.ok()) return cancelled.status();
  const absl::StatusOr<v1::Job> ended = client.Watch(job->id(), ShowProgress);
  if (!ended.ok()) return ended.status();
  std::cout << job->id() << " ended as " << v1::JobState_Name(ended->state()) << std::endl;
  return absl::OkStatus();
}

absl::Status Run(ImageClient& client, const std::string& what, const v1::ImageRequest& request,
                 const std::vector<std::string>& files) {
  if (what == "generate" && files.size() == 1) return Generate(client, request, files[0]);
  if (what == "edit" && files.size() == 2) return Edit(client, request, files[0], files[1]);
  if (what == "submit" && files.size() == 1) return Submit(client, request, files[0]);
  if (what == "cancel" && files.empty()) return Cancel(client, request);
  return absl::InvalidArgumentError(
      "valid values are generate PROMPT FILE, edit PROMPT FILE PICTURE, submit PROMPT FILE or cancel PROMPT");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: tessera_example ADDRESS generate|edit|submit|cancel PROMPT [FILE [PICTURE]]" << std::endl;
    return 2;
  }
  const char* key = std::getenv("TESSERA_API_KEY");
  const auto client = ImageClient::Create({.address = argv[1], .api_key = key == nullptr ? "" : key});
  absl::Status status = client.status();
  if (status.ok()) {
    v1::ImageRequest request;
    request.set_prompt(argv[3]);
    request.set_partial_images(2);
    status = Run(**client, argv[2], request, {argv + 4, argv + argc});
  }
  if (!status.ok()) std::cerr << status.message() << std::endl;
  return status.ok() ? 0 : 1;
}
