// The script of a fake worker: how long its work takes, and what goes wrong.
//
// Instructions stand in one text with blanks between them. The first of two of one name counts.
//   step-time=MS            every step takes so long; encode-time, decode-time and load-time likewise; at most 60000
//   error-every=N           every Nth job that the process starts fails when it is decoded
//   die-every=N             the process is killed in the middle of every Nth job that it starts
//   CALL=error              describe, load, start, step3, decode, end: an error reply; decode-probe: the group's own
//   CALL=throw              a C++ exception
//   CALL=exhausted          std::bad_alloc
//   CALL=die                SIGKILL
//   CALL=hang               never answers
//   CALL=spin               never answers, and keeps a processor busy
//   CALL=spin-in-call       the same within a call of a communicator, as one that waits for another rank busily
//   silent                  work shows no operators: it keeps a processor busy instead, as one long operator does
//   start=warn              the job is started with a warning
//   when=FILE               calls go wrong only while FILE exists
//   faults=FILE             a line more in this file whenever one goes wrong
//   any-model               describes folders that do not exist, too
//   exit=CODE               ends before it listens
//   version=TEXT            says that it is of another release
//   mute                    never listens
//   mute-if-adoptable       never listens where it has an orphan grace period
//   no-device               refuses to load: the device is not there
//   no-room                 one rank refuses to load: there is no memory for more than a block at a time
//   memory=BYTES            a device other than the CPU has so many beside the weights
//   memory-free=BYTES       so many of them are free; without it all are
//   identity=A,B,C,D,E      what devices other than the CPU are: device, driver, cuDNN, NCCL, communicator
//   device-memory=A,B,C,D   a device other than the CPU has so many bytes in all, free, used and cached
//   salt=N                  other pixels for the same request
//   drift=N                 other latents from step N on; drift-of-WORD for jobs with that prompt
//   layout-drift=N          the same in a group of several ranks
//   batch-drift             another prediction beside other jobs
//   gate=FILE               the first step of a job whose prompt holds "gated" waits until FILE exists
//   contents=FILE           its weights have the digest that stands in FILE when it loads
//   loads=FILE              a line more in this file whenever it loads
//   sizes=FILE              a line more in this file, WIDTHxHEIGHT, for every image of which it makes a step
//   encoders=FILE           a line more in this file whenever it reads text encoders that it does not keep
// An instruction that begins with rankN: is for that rank of the group alone; CALL-of-WORD is for jobs with that
// prompt.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tessera::control {

class FakeScript {
 public:
  // Those for one rank. INVALID_ARGUMENT names an instruction that is none.
  static absl::StatusOr<FakeScript> Read(absl::string_view text, int64_t rank);

  bool Has(const std::string& name) const { return instructions_.contains(name); }
  // Empty, and 0, where the script has none.
  std::string Text(const std::string& name) const;
  int64_t Number(const std::string& name) const;
  absl::Duration Time(const std::string& name) const { return absl::Milliseconds(Number(name)); }
  // What shall go wrong in a call for a job with this prompt; empty: nothing.
  std::string Fault(const std::string& call, const std::string& prompt) const;

 private:
  std::map<std::string, std::string> instructions_;
};

}  // namespace tessera::control
