// FakeScript holds the script of a fake worker: how long its work takes and which faults it injects.
//
// A script is one text whose instructions are separated by blanks. If a name occurs twice, its first instruction
// counts.
//   step-time=MS            every step takes this long, at most 60000; also encode-time, decode-time and load-time
//   error-every=N           decoding fails for every Nth job that the process starts
//   die-every=N             the process is killed in the middle of every Nth job that it starts
//   CALL=error              describe, load, start, step3, decode, end: an error reply; decode-probe: the group's own
//   CALL=throw              a C++ exception
//   CALL=exhausted          std::bad_alloc
//   CALL=die                SIGKILL
//   CALL=hang               never replies
//   CALL=spin               never replies, and keeps a processor busy
//   CALL=spin-in-call       like spin, but within a call of a communicator, as if it polled for another rank
//   silent                  work reports no operators: it keeps a processor busy instead, as one long operator does
//   pictures=KIND           what its model does with pictures: one of PictureInput
//   first-step=N            jobs begin at this step of their schedule, and run the rest
//   start=warn              the job starts with a warning
//   start=refuse            the job is refused because of its number of steps
//   when=FILE               faults are injected only while FILE exists
//   faults=FILE             appends a line to this file for each injected fault
//   any-model               also describes folders that do not exist
//   exit=CODE               exits before it listens
//   version=TEXT            reports a different release
//   mute                    never listens
//   mute-if-adoptable       never listens if it has an orphan grace period
//   no-device               loading fails: the device is not available
//   no-room                 loading fails on one rank: there is memory for only one block at a time
//   memory=BYTES            memory that a device other than the CPU has in addition to the weights
//   memory-free=BYTES       the free part of it; by default all of it
//   identity=A,B,C,D,E      identity of devices other than the CPU: device, driver, cuDNN, NCCL, communicator
//   device-memory=A,B,C,D   bytes of a device other than the CPU: total, free, used and cached
//   salt=N                  different pixels for the same request
//   drift=N                 different latents from step N on; drift-of-WORD for jobs with that prompt
//   layout-drift=N          like drift, in a group of several ranks
//   batch-drift             a different prediction in a batch with other jobs
//   gate=FILE               the first step of a job whose prompt contains "gated" waits until FILE exists
//   permits=FILE            each step waits until FILE has one byte more than the process has done steps
//   contents=FILE           its weights have the digest that FILE contains when it loads
//   load-gate=FILE          loading stops half-way, as it reports, until FILE exists
//   loads=FILE              appends a line to this file for each load
//   sizes=FILE              appends a line, WIDTHxHEIGHT, to this file for each image in each step
//   encoders=FILE           appends a line to this file each time it reads text encoders that it does not keep
// An instruction with the prefix rankN: applies to that rank of the group only; CALL-of-WORD applies to jobs with that
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
  // Keeps the instructions for `rank`. INVALID_ARGUMENT names an unknown instruction.
  static absl::StatusOr<FakeScript> Read(absl::string_view text, int64_t rank);

  bool Has(const std::string& name) const { return instructions_.contains(name); }
  // Return an empty text and 0 if the script has no such instruction.
  std::string Text(const std::string& name) const;
  int64_t Number(const std::string& name) const;
  absl::Duration Time(const std::string& name) const { return absl::Milliseconds(Number(name)); }
  // The fault to inject into a call for a job with this prompt; empty: none.
  std::string Fault(const std::string& call, const std::string& prompt) const;

 private:
  std::map<std::string, std::string> instructions_;
};

}  // namespace tessera::control
