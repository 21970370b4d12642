#include "tests/faults/kill_oracle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/image/image_file.h"
#include "tests/support/picture_of.h"

namespace tessera {

namespace {

std::string Picture(const std::string& name) {
  std::ifstream file("tests/pictures/uploads/" + name, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  EXPECT_FALSE(bytes.empty()) << name;
  return absl::StrCat(R"({"data": ")", absl::Base64Escape(bytes), "\"}");
}

}  // namespace

std::string KillOracle::Body(int kind) const {
  if (kind == kFailing) return R"({"prompt": "fail", "size": "64x64", "num_inference_steps": 8, "seed": 6})";
  if (kind == kTooLate) {
    return R"({"prompt": "late", "size": "64x64", "num_inference_steps": 500, "seed": 7, "deadline_ms": 1})";
  }
  std::string pictures;
  const bool has_pictures = with_pictures && DECODES_PICTURES && kind >= kKinds - 2;
  if (has_pictures) pictures = absl::StrCat(R"(, "images": [)", Picture("rgb.png"), "]");
  if (has_pictures && kind == kKinds - 1) absl::StrAppend(&pictures, R"(, "mask": )", Picture("rgba.png"));
  return absl::StrCat(R"({"prompt": "red apple )", kind, R"(", "size": "64x64", "num_inference_steps": )", 4 + kind,
                      R"(, "seed": )", kind, pictures, "}");
}

std::string KillOracle::Tally::Text(size_t acknowledged) const {
  return absl::StrCat("acked ", acknowledged, " done ", done, " failed ", failed, " cancelled ", cancelled, " lost ",
                      lost, " duplicated ", duplicated, " torn ", torn);
}

void KillOracle::Learn(TestServer& server) {
  for (int kind = 0; kind < kKinds; ++kind) {
    const TestResponse response = server.Call("POST", "/v1/jobs", Body(kind));
    ASSERT_EQ(response.status, 202) << response.body;
    jobs.push_back({.id = std::string(boost::json::parse(response.body).at("id").as_string()), .kind = kind});
    ASSERT_EQ(server.Ended(jobs.back().id), "done");
    undisturbed_.push_back(server.ImageBytes(server.Get(jobs.back().id)));
  }
  std::set<std::string> different(undisturbed_.begin(), undisturbed_.end());
  ASSERT_EQ(different.size(), size_t{kKinds}) << "or the oracle could not tell them apart";
}

bool KillOracle::IsSame(const std::string& file, const std::string& undisturbed) const {
  // The files of groups with different layouts differ in the layout only.
  if (levels == 0 || file == undisturbed) return PictureOf(file) == PictureOf(undisturbed);
  const absl::StatusOr<server::DecodedImage> image = server::DecodeImage(file),
                                             wanted = server::DecodeImage(undisturbed);
  return image.ok() && wanted.ok() &&
         std::ranges::equal(image->image.bytes, wanted->image.bytes,
                            [this](int level, int other) { return std::abs(level - other) <= levels; });
}

KillOracle::Tally KillOracle::Judge(TestServer& server) const {
  Tally tally;
  std::set<std::string> known;
  for (const Acknowledged& job : jobs) {
    known.insert(job.id);
    const std::string status = server.Ended(job.id);
    const boost::json::object ended = server.Get(job.id);
    if (status == "done") {
      ++tally.done;
      if (ended.at("images").as_array().size() != 1) ++tally.duplicated;
      const std::string image = server.ImageBytes(ended);
      if (job.kind >= kKinds || !IsSame(image, undisturbed_[static_cast<size_t>(job.kind)])) {
        ++tally.torn;
        std::printf("torn: %s: %zu bytes: \"%s\"\n", boost::json::serialize(ended).c_str(), image.size(),
                    absl::CHexEscape(image.substr(0, 1000)).c_str());
      }
    } else if (status == "failed" && job.kind >= kKinds) {
      ++tally.failed;
    } else if (status == "failed") {
      // A job that was alone in a worker when it was killed, three times, is taken for the cause and fails.
      const std::string error = boost::json::serialize(ended.at("error"));
      ++(error.find("signal") != std::string::npos ? tally.failed : tally.lost);
      std::printf("%s failed: %s\n", job.id.c_str(), error.c_str());
    } else if (status == "cancelled" && job.cancelled) {
      ++tally.cancelled;
    } else {
      ++tally.lost;
      std::printf("lost: %s is %s\n", job.id.c_str(), status.c_str());
    }
  }
  if (known.size() != jobs.size()) tally.duplicated += static_cast<int>(jobs.size() - known.size());
  std::string after;
  while (true) {
    const TestResponse page = server.Call("GET", absl::StrCat("/v1/jobs?limit=100", after));
    const boost::json::value list = boost::json::parse(page.body);
    const boost::json::array& data = list.at("data").as_array();
    for (const boost::json::value& job : data) {
      if (!known.contains(std::string(job.at("id").as_string()))) ++tally.duplicated;
    }
    if (!list.at("has_more").as_bool()) return tally;
    after = absl::StrCat("&after=", std::string(list.at("next").as_string()));
  }
}

}  // namespace tessera
