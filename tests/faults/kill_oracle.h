// KillOracle records what killed servers promised to clients and checks that every promise was kept: each acknowledged
// job has ended once, with the image that an undisturbed server makes of its request.
#pragma once

#include <string>
#include <vector>

#include "tests/faults/test_server.h"

namespace tessera {

struct KillOracle {
  static constexpr int kKinds = 6;    // different requests that end with an image
  static constexpr int kFailing = 6;  // one that fails at a step
  static constexpr int kTooLate = 7;  // one whose deadline passes
  std::string Body(int kind) const;

  // A job as its client knows it.
  struct Acknowledged {
    std::string id;
    int kind = 0;
    bool cancelled = false;  // the client requested it
  };

  struct Tally {
    int done = 0, failed = 0, cancelled = 0;
    int lost = 0;        // missing, never ended, or cancelled without a request
    int duplicated = 0;  // jobs unknown to all clients, or with more than one image
    int torn = 0;        // images that differ from the undisturbed run

    std::string Text(size_t acknowledged) const;
  };

  // Lets an undisturbed server make each image once. These jobs count as acknowledged, too.
  void Learn(TestServer& server);

  // Waits for the end of every job.
  Tally Judge(TestServer& server) const;

  std::vector<Acknowledged> jobs;
  // The last two kinds that end with an image begin from pictures. Has no effect in a build with a sanitizer, whose
  // decoder cannot be confined.
  bool with_pictures = false;
  int levels = 0;  // permitted difference of a pixel from the undisturbed run; 0: every byte of the file is the same

 private:
  bool IsSame(const std::string& file, const std::string& undisturbed) const;

  std::vector<std::string> undisturbed_;  // images, by kind
};

}  // namespace tessera
