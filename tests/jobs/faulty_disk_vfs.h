// Implements SQLite's file layer over a FaultyDisk.
#pragma once

#include <string>

struct sqlite3_vfs;

namespace tessera {

class FaultyDisk;

sqlite3_vfs* RegisterVfs(FaultyDisk& disk, const std::string& name);
void UnregisterVfs(sqlite3_vfs* vfs);

}  // namespace tessera
