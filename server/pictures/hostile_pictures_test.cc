// Files made to harm a decoder. Each must give a named error, or a picture where the file is merely odd; the confined
// process must survive each of them, because a file that ends it could have found a defect.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "server/pictures/picture_decoder.h"

namespace tessera::server {
namespace {

using std::string_literals::operator""s;

struct Hostile {
  std::string name;
  std::string bytes;
  std::string expected;  // a part of the error; empty: a picture
};

std::string FileBytes(const std::string& name) {
  std::ifstream in("tests/pictures/uploads/" + name, std::ios::binary);
  EXPECT_TRUE(in.is_open()) << name;
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string BigEndian(uint32_t value, int bytes = 4) {
  std::string out;
  for (int i = bytes - 1; i >= 0; --i) out.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
  return out;
}

std::string LittleEndian(uint32_t value, int bytes = 4) {
  std::string out = BigEndian(value, bytes);
  return {out.rbegin(), out.rend()};
}

std::string Chunk(const std::string& type, const std::string& data) {
  const std::string content = type + data;
  const auto checksum = static_cast<uint32_t>(
      crc32(0, reinterpret_cast<const Bytef*>(content.data()), static_cast<uInt>(content.size())));
  return BigEndian(static_cast<uint32_t>(data.size())) + content + BigEndian(checksum);
}

std::string Deflated(const std::string& data) {
  std::string out(compressBound(data.size()), '\0');
  uLongf size = out.size();
  EXPECT_EQ(
      compress(reinterpret_cast<Bytef*>(out.data()), &size, reinterpret_cast<const Bytef*>(data.data()), data.size()),
      Z_OK);
  out.resize(size);
  return out;
}

std::string Header(uint32_t width, uint32_t height, int depth = 8, int color = 2, int interlace = 0) {
  return "\x89PNG\r\n\x1a\n" + Chunk("IHDR", BigEndian(width) + BigEndian(height) + static_cast<char>(depth) +
                                                 static_cast<char>(color) + "\0\0"s + static_cast<char>(interlace));
}

// Returns a PNG of 2x2 pixels with `chunks` before its pixels.
std::string SmallPng(const std::string& chunks, const std::string& after = "") {
  return Header(2, 2) + chunks + Chunk("IDAT", Deflated(std::string(14, '\0'))) + after + Chunk("IEND", "");
}

std::string WithByte(std::string bytes, size_t at, char value) {
  bytes.at(at) = value;
  return bytes;
}

std::string Replaced(std::string bytes, const std::string& from, const std::string& to) {
  const size_t at = bytes.find(from);
  EXPECT_NE(at, std::string::npos);
  return bytes.replace(at, from.size(), to);
}

void AddPngs(std::vector<Hostile>& all) {
  const std::string end = Chunk("IEND", ""), row = Deflated(std::string(14, '\0'));
  const std::string rgb = FileBytes("rgb.png");
  const std::vector<Hostile> files = {
      {"a signature alone", "\x89PNG\r\n\x1a\n", "cut short"},
      {"no chunk but the end", "\x89PNG\r\n\x1a\n" + end, "damaged"},
      {"no pixels", Header(2, 2) + end, "damaged"},
      {"no width", Header(0, 2) + Chunk("IDAT", row) + end, "damaged"},
      {"no height", Header(2, 0) + Chunk("IDAT", row) + end, "damaged"},
      {"two billion columns", Header(0x7FFFFFFF, 1) + Chunk("IDAT", row) + end, "a side may have at most 16384"},
      {"four billion rows", Header(1, 0xFFFFFFFF) + Chunk("IDAT", row) + end, "damaged"},
      {"one column too many", Header(16385, 1) + Chunk("IDAT", row) + end, "a side may have at most 16384"},
      {"a square beyond the pixels", Header(16384, 16384) + Chunk("IDAT", row) + end, "at most 67108864 are decoded"},
      {"many pixels of few bytes", Header(8000, 8000) + Chunk("IDAT", row) + end, "cannot hold so many pixels"},
      {"a bomb of zeros", Header(16000, 16000, 1, 0) + Chunk("IDAT", Deflated(std::string(32016000, '\0'))) + end,
       "at most 67108864 are decoded"},
      {"an unknown depth", Header(2, 2, 3) + Chunk("IDAT", row) + end, "damaged"},
      {"an unknown colour type", Header(2, 2, 8, 5) + Chunk("IDAT", row) + end, "damaged"},
      {"an unknown interlacing", Header(2, 2, 8, 2, 7) + Chunk("IDAT", row) + end, "damaged"},
      {"pixels that are not deflated", Header(2, 2) + Chunk("IDAT", "not deflated") + end, "damaged"},
      {"too few pixels", Header(2, 2) + Chunk("IDAT", Deflated(std::string(7, '\0'))) + end, "damaged"},
      {"an unknown filter", Header(2, 2) + Chunk("IDAT", Deflated(std::string(14, '\x09'))) + end, "damaged"},
      {"a wrong checksum", WithByte(rgb, 29, '\0'), "damaged"},
      {"a chunk of four billion bytes", Header(2, 2) + "\xFF\xFF\xFF\xFFIDAT"s + row, "cut short"},
      {"a chunk beyond the file", Header(2, 2) + "\0\xFF\0\0tEXt"s + row, "cut short"},
      {"a palette picture without palette", Header(2, 2, 8, 3) + Chunk("IDAT", row) + end, "damaged"},
      {"an index outside the palette",
       Header(2, 2, 8, 3) + Chunk("PLTE", "abc") + Chunk("IDAT", Deflated("\0\x09\x09\0\x09\x09"s)) + end, ""},
      {"a text that unpacks to 32 MB", SmallPng(Chunk("zTXt", "a\0\0"s + Deflated(std::string(32 << 20, 'x')))), ""},
      {"a profile that unpacks to 32 MB", SmallPng(Chunk("iCCP", "a\0\0"s + Deflated(std::string(32 << 20, 'x')))),
       "colour profile"},
      {"a profile of nothing", SmallPng(Chunk("iCCP", "a\0\0"s + Deflated(""))), "colour profile"},
      {"a colour space of HDR", SmallPng(Chunk("cICP", "\x09\x10\0\x01"s)), "another colour space"},
      {"EXIF whose directory is outside", SmallPng(Chunk("eXIf", "II*\0\xFF\xFF\xFF\x7F"s)), ""},
      {"EXIF after the pixels with an unknown orientation",
       SmallPng("", Chunk("eXIf", "MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x63\0\0\0\0\0\0"s)), ""},
      {"EXIF with 65535 entries", SmallPng(Chunk("eXIf", "MM\0*\0\0\0\x08\xFF\xFF"s)), ""},
      {"an unknown critical chunk", SmallPng(Chunk("ABCD", "x")), "damaged"},
      {"an animation without frames", SmallPng(Chunk("acTL", std::string(8, '\xFF'))), ""},
      {"half of a picture", rgb.substr(0, rgb.size() / 2), "cut short"},
      {"a picture without its end", rgb.substr(0, rgb.size() - 1), "cut short"},
      {"a picture and then a program", rgb + "#!/bin/sh\nrm -rf /\n", ""},
  };
  all.insert(all.end(), files.begin(), files.end());
}

void AddJpegs(std::vector<Hostile>& all) {
  const std::string jpeg = FileBytes("baseline.jpg"), progressive = FileBytes("progressive.jpg");
  const size_t frame = jpeg.find("\xFF\xC0");
  std::string scans = progressive.substr(0, progressive.size() - 2);
  const std::string last_scan = scans.substr(scans.rfind("\xFF\xDA"));
  for (int i = 0; i < 200; ++i) scans += last_scan;
  const std::string two_components = Replaced(
      jpeg.substr(0, frame) + "\xFF\xC0\0\x0E\x08\0\x0D\0\x13\x02\x01\x22\0\x02\x11\x01"s + jpeg.substr(frame + 19),
      "\xFF\xDA\0\x0C\x03\x01\0\x02\x11\x03\x11"s, "\xFF\xDA\0\x0A\x02\x01\0\x02\x11"s);
  const std::string profile_marker = "\xFF\xE2" + BigEndian(18, 2) + "ICC_PROFILE\0"s;
  const auto with = [&](const std::string& marker) { return jpeg.substr(0, 2) + marker + jpeg.substr(2); };
  const std::vector<Hostile> files = {
      {"the start alone", "\xFF\xD8\xFF", "damaged"},
      {"half of a photo", jpeg.substr(0, jpeg.size() / 2), "damaged"},
      {"a photo without its end", jpeg.substr(0, jpeg.size() - 2), "damaged"},
      {"a photo without rows", WithByte(WithByte(jpeg, frame + 5, '\0'), frame + 6, '\0'), "damaged"},
      {"a photo without columns", WithByte(WithByte(jpeg, frame + 7, '\0'), frame + 8, '\0'), "damaged"},
      {"65535 rows", WithByte(WithByte(jpeg, frame + 5, '\xFF'), frame + 6, '\xFF'),
       "Maximum supported image dimension"},
      {"20480 rows", WithByte(jpeg, frame + 5, '\x50'), "a side may have at most 16384"},
      {"12 bits", WithByte(jpeg, frame + 4, 12), "damaged"},
      {"arithmetic coding of Huffman data", WithByte(jpeg, frame + 1, '\xC9'), "damaged"},
      {"lossless coding", WithByte(jpeg, frame + 1, '\xC3'), "damaged"},
      {"two components", two_components, "2 colour components"},
      {"sampling factors of zero", WithByte(jpeg, frame + 11, '\0'), "damaged"},
      {"sampling factors of 15", WithByte(jpeg, frame + 11, '\xFF'), "damaged"},
      {"a quantisation table that is missing", WithByte(jpeg, frame + 12, 3), "damaged"},
      {"two hundred scans", scans + "\xFF\xD9", "damaged"},
      {"a marker without an end", with("\xFF\xE1\xFF\xFF"), "damaged"},
      {"a part of a profile", with(profile_marker + "\x01\x05xx"), "colour profile is damaged"},
      {"a profile of two bytes", with(profile_marker + "\x01\x01xx"), "colour profile is damaged"},
      {"EXIF that is cut", with("\xFF\xE1"s + BigEndian(12, 2) + "Exif\0\0MM\0*"s), ""},
      {"a PNG in a JPEG's start", "\xFF\xD8\xFF" + FileBytes("rgb.png"), "damaged"},
  };
  all.insert(all.end(), files.begin(), files.end());
}

void AddWebps(std::vector<Hostile>& all) {
  const std::string lossless = FileBytes("lossless.webp"), lossy = FileBytes("lossy.webp");
  const std::string animated = FileBytes("animated.webp"), profile = FileBytes("wide_profile.webp");
  const size_t frame = animated.find("ANMF") + 8;
  std::string canvas = animated;
  canvas.replace(24, 6, "\xFF\xFF\xFF\xFF\xFF\xFF");
  const std::vector<Hostile> files = {
      {"a header alone", lossless.substr(0, 12), "damaged"},
      {"half of a WebP", lossless.substr(0, lossless.size() / 2), "damaged"},
      {"a lossy WebP without its end", lossy.substr(0, lossy.size() - 20), "damaged"},
      {"a size of four billion", Replaced(lossless, lossless.substr(4, 4), "\xFF\xFF\xFF\xFF"), "damaged"},
      {"a canvas of 16777216x16777216", canvas, "damaged"},
      {"a frame outside the canvas", WithByte(animated, frame, '\x40'), "damaged"},
      {"an animation without its frames", Replaced(Replaced(animated, "ANMF", "XXXX"), "ANMF", "XXXX"), "damaged"},
      {"a profile of noise", Replaced(profile, "acsp", "nope"), "colour profile"},
      {"a lossless bitstream of noise", WithByte(WithByte(lossless, 26, '\x55'), 27, '\xAA'), "damaged"},
      {"other bytes in a WebP's container", "RIFF" + LittleEndian(20) + "WEBPVP8L" + LittleEndian(8) + "12345678",
       "damaged"},
  };
  all.insert(all.end(), files.begin(), files.end());
}

void AddOthers(std::vector<Hostile>& all) {
  const std::vector<Hostile> files = {
      {"nothing", "", "the picture is empty"},
      {"a GIF", "GIF89a\x01\0\x01\0"s, "the picture is GIF;"},
      {"a TIFF", "II*\0\x08\0\0\0"s, "the picture is TIFF;"},
      {"a BMP", "BM\0\0\0\0\0\0"s, "the picture is BMP;"},
      {"an AVIF",
       "\0\0\0\x1C"
       "ftypavif"s,
       "the picture is AVIF;"},
      {"a HEIC",
       "\0\0\0\x18"
       "ftypheic"s,
       "the picture is HEIC;"},
      {"an SVG", "<?xml version='1.0'?><svg onload='alert(1)'/>", "the picture is SVG;"},
      {"a PDF", "%PDF-1.7", "the picture is PDF;"},
      {"a JPEG XL", "\xFF\x0A\xFA", "the picture is JPEG XL;"},
      {"a page", "<html><img src='x'></html>", "not a picture"},
      {"a zip", "PK\x03\x04", "not a picture"},
      {"zeros", std::string(100000, '\0'), "not a picture"},
      {"a path", "../../etc/passwd", "not a picture"},
  };
  all.insert(all.end(), files.begin(), files.end());
}

TEST(HostilePictures, AreRefusedByNameOrDecodedAndNeverEndTheProcess) {
  auto decoder = PictureDecoder::Start({.executable = PICTURE_DECODER});
  ASSERT_TRUE(decoder.ok()) << decoder.status();
  std::vector<Hostile> all;
  AddPngs(all);
  AddJpegs(all);
  AddWebps(all);
  AddOthers(all);
  EXPECT_GE(all.size(), 60U);
  for (const Hostile& file : all) {
    const absl::StatusOr<DecodedPicture> picture = (*decoder)->Decode(file.bytes);
    const std::string message(picture.status().message());
    EXPECT_EQ(message.find("ended the process"), std::string::npos) << file.name << ": " << message;
    if (file.expected.empty()) {
      EXPECT_TRUE(picture.ok()) << file.name << ": " << message;
    } else {
      EXPECT_NE(message.find(file.expected), std::string::npos) << file.name << ": " << message;
    }
  }
}

}  // namespace
}  // namespace tessera::server
