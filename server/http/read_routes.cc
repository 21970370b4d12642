#include <string>
#include <utility>
#include <vector>

#include "base/json/plain_json.h"
#include "server/http/api_routes.h"
#include "server/http/job_json.h"
#include "server/http/openapi_document.h"
#include "server/http/request_schema.h"
#include "server/http/usage_json.h"

namespace tessera::server {

std::vector<ApiRoute> ReadRoutes(const ApiContext& context) {
  std::vector<ApiRoute> routes;
  const auto add = [&](const char* pattern, bool needs_key, std::function<void(ApiCall)> handle) {
    routes.push_back({.method = "GET", .pattern = pattern, .needs_key = needs_key, .handle = std::move(handle)});
  };
  add("/v1/models", true, [context](const ApiCall& call) {
    std::vector<ServedModel> models = context.service.ListModels();
    std::erase_if(models, [](const ServedModel& model) { return !model.unreadable.ok(); });
    call.reply->SendJson(200, ModelListJson(models));
  });
  add("/v1/models/{id...}", true, [context](const ApiCall& call) {
    const std::string& name = call.parameters[0];
    const std::vector<ServedModel> models = context.service.ListModels();
    const absl::StatusOr<NamedModel> named = FindNamed(name, models);
    if (!named.ok()) return call.reply->SendError(named.status());
    const ServedModel& model = *named->model;
    if (!model.unreadable.ok()) return call.reply->SendError(model.unreadable);
    call.reply->SendJson(200, named->adapter == nullptr ? ModelJson(model, name) : AdapterJson(model, *named->adapter));
  });
  add("/v1/images/{id}", true, [context](const ApiCall& call) {
    absl::StatusOr<ImageFile> image = context.service.OpenImage(call.caller, call.parameters[0]);
    if (!image.ok()) return call.reply->SendError(image.status());
    call.reply->Send({.status = 200,
                      .headers = {{"Content-Type", MediaType(image->format)}, {"Content-Disposition", "inline"}},
                      .body = "",
                      .pieces = std::move(image->bytes)});
  });
  add("/v1/schema", false,
      [](const ApiCall& call) { call.reply->SendJson(200, base::PlainJson(RequestSchema(BodyKind::kJob))); });
  add("/v1/server", true,
      [context](const ApiCall& call) { call.reply->SendJson(200, ServerInfoJson(context.service.Info())); });
  add("/v1/usage", true, [context](const ApiCall& call) {
    absl::StatusOr<UsageQuery> query = ReadUsageQuery(call.request.Query(), context.options.now());
    if (!query.ok()) return call.reply->SendError(query.status());
    query->key = call.caller.tenant;
    const absl::StatusOr<std::vector<DayUsage>> usage = context.service.Usage(*query);
    if (!usage.ok()) return call.reply->SendError(usage.status());
    call.reply->SendJson(200, UsageJson(*query, *usage));
  });
  routes.back().query = {"since", "until"};
  add("/openapi.json", false, [](const ApiCall& call) { call.reply->SendJson(200, OpenApiDocument()); });
  const auto add_check = [&](const char* pattern, std::function<void(ApiCall)> handle) {
    add(pattern, false, std::move(handle));
    routes.back().at_once = true;
    routes.back().any_host = true;
  };
  const auto ready = [context](const ApiCall& call) {
    const absl::Status ready = context.service.Ready();
    if (!ready.ok()) return call.reply->SendError(ready);
    call.reply->SendJson(200, R"({"status":"ok"})");
  };
  add_check("/livez", [](const ApiCall& call) { call.reply->SendJson(200, R"({"status":"ok"})"); });
  add_check("/readyz", ready);
  if (context.options.health) add_check("/health", ready);
  if (context.options.metrics) {
    add("/metrics", false, [context](const ApiCall& call) {
      call.reply->Send(
          {.status = 200, .headers = {{"Content-Type", kMetricsMediaType}}, .body = context.options.metrics()});
    });
    routes.back().any_host = true;
  }
  return routes;
}

}  // namespace tessera::server
