// For tests: a folder of their own that goes away with them, and safetensors files made by hand.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace tessera {

class TestFolder {
 public:
  TestFolder() : path_(std::filesystem::path(testing::TempDir()) / "tessera_XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "cannot make a folder like " << path_;
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  // Makes the folders above the file too. Returns the file's path.
  std::string Write(const std::string& name, const std::string& bytes) const {
    std::string path = *this / name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream file(path, std::ios::binary);
    file << bytes;
    EXPECT_TRUE(file.flush()) << path;
    return path;
  }

 private:
  std::string path_;
};

// A safetensors file with that header and that data.
inline std::string SafetensorsBytes(const std::string& header, const std::string& data) {
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
  return length + header + data;
}

// A safetensors file with one F32 tensor [1] of four zero bytes.
inline std::string OneTensor(const std::string& name) {
  return SafetensorsBytes("{\"" + name + R"(": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})",
                          std::string(4, '\0'));
}

}  // namespace tessera
