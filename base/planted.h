// Bugs that tests plant to see that they would be noticed. A planted bug stands in the code it spoils, as
// `if (Planted("name")) …`; in every ordinary build that is a constant false.
#pragma once

namespace tessera::base {

#ifdef TESSERA_PLANTED_BUGS
// Whether this is the bug that the test chose; defined by the test.
bool Planted(const char* bug);
#else
consteval bool Planted(const char*) { return false; }
#endif

}  // namespace tessera::base
