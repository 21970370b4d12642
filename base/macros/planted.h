// Bugs that tests plant in order to check that they are detected. A planted bug is in the code it affects, as `if
// (Planted("name")) …`; in every ordinary build that is a constant false.
#pragma once

namespace tessera::base {

#ifdef TESSERA_PLANTED_BUGS
// Returns whether this is the bug that the test selected; defined by the test.
bool Planted(const char* bug);
#else
consteval bool Planted(const char*) { return false; }
#endif

}  // namespace tessera::base
