// How far the ranks of a group have loaded their model, from the reports that they write into their segment.
#pragma once

namespace tessera::parallel {
class HostSegment;
}

namespace tessera::server {

// Returns the part of the weight files that the ranks have read, 0 to 1: the mean over the ranks. Every report is
// valid, also one that no correct rank writes.
double LoadedPart(const parallel::HostSegment& segment);

}  // namespace tessera::server
