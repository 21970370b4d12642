// JobEvent is what the watcher of a job receives; server/api/job.h defines the events.
#pragma once

#include <variant>

namespace tessera::server {

struct QueuedEvent;
struct StartedEvent;
struct StepEvent;
struct PreviewEvent;
struct ImageEvent;
struct EndedEvent;
struct ReleasedEvent;
using JobEvent =
    std::variant<QueuedEvent, StartedEvent, StepEvent, PreviewEvent, ImageEvent, EndedEvent, ReleasedEvent>;

// Which events a watch delivers.
enum class WatchedEvents {
  kAll,
  kResults,  // previews, images and the end, without the frequent progress events
};

}  // namespace tessera::server
