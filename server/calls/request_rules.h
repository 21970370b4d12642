// RequestRules are what the operator configures about the contents of requests. A value; its objects are thread-safe.
#pragma once

#include <memory>

namespace tessera::server {

class InputCheck;
class UrlFetcher;

struct RequestRules {
  std::shared_ptr<UrlFetcher> fetcher;      // of pictures that are named by URL; null: no URL is fetched
  std::shared_ptr<InputCheck> input_check;  // of prompts and pictures; null: nothing is judged
};

}  // namespace tessera::server
