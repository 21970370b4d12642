#include "server/pictures/picture_decoder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "server/image/image_file.h"
#include "server/pictures/decode_picture.h"
#include "tests/support/wait_until.h"

namespace tessera::server {
namespace {

using testing::HasSubstr;

std::string FileBytes(const std::string& name) {
  std::ifstream in("tests/pictures/uploads/" + name, std::ios::binary);
  EXPECT_TRUE(in.is_open()) << name;
  return {std::istreambuf_iterator<char>(in), {}};
}

std::unique_ptr<PictureDecoder> RealDecoder(int processes = 2) {
  auto decoder = PictureDecoder::Start({.executable = PICTURE_DECODER, .processes = processes});
  EXPECT_TRUE(decoder.ok()) << decoder.status();
  return *std::move(decoder);
}

// Starts a decoder. One that gives pictures little time needs more than one attempt where this machine stalls, because
// it decodes one to start.
std::unique_ptr<PictureDecoder> Started(const PictureDecoderOptions& options) {
  absl::StatusOr<std::unique_ptr<PictureDecoder>> decoder = absl::UnknownError("not yet");
  WaitUntil("a decoder starts", [&] {
    decoder = PictureDecoder::Start(options);
    return decoder.ok();
  });
  EXPECT_TRUE(decoder.ok()) << decoder.status();
  return *std::move(decoder);
}

// Returns a decoder whose process does what a picture's text says (planted_decoder_main.cc).
std::unique_ptr<PictureDecoder> PlantedDecoder(absl::Duration decode_timeout = absl::Seconds(120)) {
  return Started({.executable = PLANTED_PICTURE_DECODER, .decode_timeout = decode_timeout});
}

size_t OpenDescriptors() {
  const std::filesystem::directory_iterator descriptors("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(descriptors), end(descriptors)));
}

bool HasChildren() { return waitpid(-1, nullptr, WNOHANG) >= 0 || errno != ECHILD; }

TEST(PictureDecoder, DecodesAsTheFunctionDoesWithoutAProcess) {
  const auto decoder = RealDecoder();
  for (const char* name : {"rgba.png", "orientation_6.jpg", "cmyk.jpg", "wide_profile.webp", "animated.png"}) {
    const absl::StatusOr<DecodedPicture> confined = decoder->Decode(FileBytes(name));
    const absl::StatusOr<DecodedPicture> direct = DecodePicture(FileBytes(name), {});
    ASSERT_TRUE(confined.ok()) << name << ": " << confined.status();
    ASSERT_TRUE(direct.ok()) << direct.status();
    EXPECT_TRUE(confined->frames.has_shape_of(direct->frames)) << name;
    EXPECT_EQ(confined->frames.bytes, direct->frames.bytes) << name;
    EXPECT_EQ(confined->facts, direct->facts) << name;
  }
}

TEST(PictureDecoder, DecodesMoreBytesThanTheSocketHolds) {
  uint32_t state = 1;
  control::Frames frames{.width = 900, .height = 700, .bytes = {}};
  for (int i = 0; i < 3 * 900 * 700; ++i) {
    state = state * 1664525 + 1013904223;
    frames.bytes.push_back(static_cast<uint8_t>(state >> 24));
  }
  const std::string file = EncodeImage(frames, ImageFormat::kPng, {}).value();
  ASSERT_GT(file.size(), size_t{1} << 20);
  const absl::StatusOr<DecodedPicture> picture = RealDecoder()->Decode(file);
  ASSERT_TRUE(picture.ok()) << picture.status();
  EXPECT_EQ(picture->frames.bytes, frames.bytes);
}

TEST(PictureDecoder, ReturnsTheErrorOfThePicture) {
  const auto decoder = RealDecoder();
  EXPECT_EQ(decoder->Decode("GIF89a").status(),
            absl::InvalidArgumentError("the picture is GIF; PNG, JPEG and WebP are supported"));
  EXPECT_EQ(decoder->Decode("").status(), absl::InvalidArgumentError("the picture is empty"));
}

TEST(PictureDecoder, SendsNoPictureBeyondTheLimitOfBytes) {
  auto decoder = PictureDecoder::Start({.executable = PICTURE_DECODER, .limits = {.file_bytes = 100}});
  ASSERT_TRUE(decoder.ok()) << decoder.status();
  EXPECT_EQ((*decoder)->Decode(std::string(101, 'x')).status(),
            absl::ResourceExhaustedError("the picture has 101 bytes; at most 100 are read"));
}

class ConfinementTest : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Attempts, ConfinementTest,
                         testing::Values("open a file", "create a file", "make a socket", "fork", "execute",
                                         "signal its parent", "write to standard error", "duplicate a descriptor",
                                         "send a message", "map code", "crash", "abort", "exit"));

TEST_P(ConfinementTest, EndsTheProcessAndTheNextPictureIsDecoded) {
  const auto decoder = PlantedDecoder();
  EXPECT_EQ(decoder->Decode(GetParam()).status(),
            absl::InvalidArgumentError("the picture cannot be decoded: it ended the process that decodes it"));
  EXPECT_TRUE(decoder->Decode("\x89PNG").ok());
}

class ReplyTest : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Lies, ReplyTest,
                         testing::Values("promise more pixels than it sends", "send more pixels than it promises",
                                         "have no width", "have five channels", "have negative sides",
                                         "exceed the side", "claim an alpha that is not there",
                                         "name an unknown format", "fail with another code",
                                         "write something else first"));

TEST_P(ReplyTest, IsNotBelieved) {
  const auto decoder = PlantedDecoder();
  EXPECT_EQ(decoder->Decode(GetParam()).status(),
            absl::InvalidArgumentError("the picture cannot be decoded: its decoder replied something impossible"));
  EXPECT_TRUE(decoder->Decode("\x89PNG").ok());
}

TEST(PictureDecoder, GivesEveryPictureANewProcess) {
  const auto decoder = PlantedDecoder();
  for (int i = 0; i < 3; ++i) {
    const absl::StatusOr<DecodedPicture> picture = decoder->Decode("count pictures");
    ASSERT_TRUE(picture.ok()) << picture.status();
    EXPECT_EQ(picture->frames.width, 1) << "pictures that this process has decoded";
  }
}

TEST(PictureDecoder, EndsAPictureThatTakesTooLong) {
  const auto decoder = PlantedDecoder(absl::Milliseconds(300));
  EXPECT_EQ(decoder->Decode("spin").status(),
            absl::ResourceExhaustedError("the picture takes longer than 300ms to decode"));
  EXPECT_FALSE(HasChildren());
}

TEST(PictureDecoder, BoundsTheMemoryOfAPicture) {
  auto decoder = PictureDecoder::Start({.executable = PLANTED_PICTURE_DECODER,
                                        .limits = {.file_bytes = 1000, .pixels = 1000},
                                        .decode_timeout = absl::Seconds(120)});
  ASSERT_TRUE(decoder.ok()) << decoder.status();
  EXPECT_EQ((*decoder)->Decode("use memory").status(), absl::ResourceExhaustedError("out of memory"));
}

TEST(PictureDecoder, LeavesNoProcessAndNoDescriptor) {
  const size_t before = OpenDescriptors();
  {
    const auto planted = PlantedDecoder();
    const auto impatient = PlantedDecoder(absl::Milliseconds(300));
    const auto real = RealDecoder();
    for (const char* attempt : {"crash", "exit", "have no width", "\x89PNG"}) {
      EXPECT_EQ(planted->Decode(attempt).ok(), std::string(attempt) == "\x89PNG") << attempt;
    }
    EXPECT_FALSE(impatient->Decode("spin").ok());
    EXPECT_TRUE(real->Decode(FileBytes("rgb.png")).ok());
  }
  EXPECT_FALSE(HasChildren());
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(PictureDecoder, DecodesThirtyTwoPicturesAtOnce) {
  const auto decoder = RealDecoder(/*processes=*/4);
  const std::vector<std::string> files = {FileBytes("rgb.png"), FileBytes("rgba.png"), FileBytes("orientation_6.jpg"),
                                          FileBytes("lossless.webp")};
  std::vector<absl::StatusOr<DecodedPicture>> pictures(32, absl::UnknownError("not decoded"));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < pictures.size(); ++i) {
    threads.emplace_back([&, i] { pictures[i] = decoder->Decode(files[i % files.size()]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < pictures.size(); ++i) {
    ASSERT_TRUE(pictures[i].ok()) << pictures[i].status();
    EXPECT_EQ(pictures[i]->frames.bytes, DecodePicture(files[i % files.size()], {})->frames.bytes);
  }
  EXPECT_FALSE(HasChildren());
}

TEST(PictureDecoder, RefusesAPictureThatGetsNoProcessInTime) {
  const auto decoder = Started({.executable = PLANTED_PICTURE_DECODER,
                                .processes = 1,
                                .decode_timeout = absl::Seconds(3),
                                .free_process_timeout = absl::ZeroDuration()});
  // Pictures take all the time that they get, until another one finds the process of one of them running.
  std::atomic<bool> is_refused = false;
  absl::Status last;
  std::thread other([&] {
    while (!is_refused) last = decoder->Decode("spin").status();
  });
  WaitUntil("a picture gets no process", [&] { return absl::IsUnavailable(decoder->Decode("\x89PNG").status()); });
  is_refused = true;
  other.join();
  EXPECT_TRUE(absl::IsResourceExhausted(last)) << last << ": the one that was running was not disturbed";
}

TEST(PictureDecoder, IsNotDisturbedBySignals) {
  struct sigaction action = {};
  struct sigaction before = {};
  action.sa_handler = [](int) {};  // without SA_RESTART: system calls end early
  sigaction(SIGALRM, &action, &before);
  constexpr suseconds_t kPeriod = 2000;
  const itimerval often = {.it_interval = {.tv_usec = kPeriod}, .it_value = {.tv_usec = kPeriod}};
  const itimerval never = {};
  setitimer(ITIMER_REAL, &often, nullptr);
  const auto decoder = RealDecoder();
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(decoder->Decode(FileBytes("baseline.jpg")).ok());
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
}

TEST(PictureDecoder, DoesNotStartWithoutItsProgram) {
  const auto missing = PictureDecoder::Start({.executable = "/nowhere/tessera-picture-decoder"});
  EXPECT_TRUE(absl::IsUnavailable(missing.status())) << missing.status();
  const auto another = PictureDecoder::Start({.executable = "/bin/true"});
  EXPECT_EQ(another.status(), absl::UnavailableError("the picture decoder ended while it started"));
}

TEST(PictureDecoder, DoesNotStartWithAProcessThatOnlyClaimsToBeConfined) {
  const auto claimed = PictureDecoder::Start({.executable = PLANTED_PICTURE_DECODER, .limits = {.file_bytes = 4242}});
  EXPECT_TRUE(absl::IsFailedPrecondition(claimed.status())) << claimed.status();
  EXPECT_THAT(claimed.status().message(), HasSubstr("the kernel does not report a system call filter"));
}

// Runs PictureDecoder::Start in a process of a system that denies the system call `number` with the first argument
// `argument`, or all of them for -1, and returns the error.
std::string StartWhereDenied(uint32_t number, int argument) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(argument), 1, 0),
        BPF_STMT(BPF_JMP | BPF_JA, static_cast<uint32_t>(argument < 0 ? 0 : 1)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter = {std::size(program), const_cast<sock_filter*>(program)};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) != 0) {
      _exit(2);
    }
    const auto decoder = PictureDecoder::Start({.executable = PICTURE_DECODER});
    const std::string text = decoder.status().ToString();
    _exit(write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char buffer[512];
  for (ssize_t got = 0; (got = read(ends[0], buffer, sizeof(buffer))) > 0;)
    text.append(buffer, static_cast<size_t>(got));
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return text;
}

TEST(PictureDecoder, DoesNotStartWhereAProcessCannotConfineItself) {
  constexpr char kRefused[] =
      "FAILED_PRECONDITION: pictures cannot be decoded on this system, because the decoder "
      "cannot be confined: ";
  EXPECT_EQ(StartWhereDenied(__NR_prctl, PR_SET_SECCOMP),
            std::string(kRefused) + "a system call filter (seccomp) cannot be installed: Operation not permitted");
  EXPECT_EQ(StartWhereDenied(__NR_prctl, PR_SET_NO_NEW_PRIVS),
            std::string(kRefused) + "privileges cannot be given up (no_new_privs): Operation not permitted");
  EXPECT_EQ(StartWhereDenied(__NR_prctl, PR_SET_DUMPABLE),
            std::string(kRefused) + "the memory cannot be closed to other processes: Operation not permitted");
  // A system call that confinement does not need: the same start succeeds.
  EXPECT_EQ(StartWhereDenied(__NR_prctl, PR_SET_MM), "OK");
}

}  // namespace
}  // namespace tessera::server
