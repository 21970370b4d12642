// tessera-picture-decoder decodes one picture in a confined process. tessera starts it
// (server/pictures/picture_decoder.h).
#include <unistd.h>

#include <cstdio>
#include <ctime>

#include "server/pictures/decode_picture.h"
#include "server/pictures/serve_picture.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("tessera-picture-decoder is started by tessera and has no use for a person\n", stderr);
    return 2;
  }
  // Little CMS writes the time into profiles that it makes, for which the C library reads a file the first time.
  tzset();
  // Handlers that libraries registered for the end of a process may need what the filter forbids.
  _exit(tessera::server::ServePicture(argv[1], argv[2], tessera::server::DecodePicture));
}
