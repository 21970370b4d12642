// Runs a fuzz target once on every file of the folders given as arguments, for builds without libFuzzer.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int argc, char** argv) {
  size_t replayed = 0;
  for (int i = 1; i < argc; ++i) {
    std::error_code error;
    std::filesystem::directory_iterator entry(argv[i], error);
    for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
      std::ifstream file(entry->path(), std::ios::binary);
      const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
      if (!file) {
        std::fprintf(stderr, "cannot read %s\n", entry->path().c_str());
        return 1;
      }
      // Shown before the run, so that a crash names its file.
      std::printf("%s\n", entry->path().c_str());
      std::fflush(stdout);
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
      ++replayed;
    }
    if (error) {
      std::fprintf(stderr, "cannot list %s: %s\n", argv[i], error.message().c_str());
      return 1;
    }
  }
  if (replayed == 0) {
    std::fprintf(stderr, "no file to replay\n");
    return 1;
  }
  std::printf("%zu inputs replayed\n", replayed);
  return 0;
}
