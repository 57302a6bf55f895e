#include "holdfast/campaign/campaign_file.h"

#include <algorithm>
#include <cmath>

#include "holdfast/base/json.h"
#include "holdfast/base/xxh3.h"
#include "holdfast/corruption/sites.h"
#include "holdfast/env/source_sink.h"

namespace holdfast {
namespace {

constexpr const char* kCampaignKind = "campaign";
constexpr int64_t kCampaignVersion = 1;
constexpr int64_t kDigestWindow = int64_t{4} << 20;

OrderedJson thresholds_json(const Thresholds& thresholds) {
  return {{"extreme_loss", thresholds.extreme_loss},
          {"degraded_accuracy", thresholds.degraded_accuracy},
          {"degraded_loss", thresholds.degraded_loss},
          {"spiked_loss", thresholds.spiked_loss}};
}

Result<double> read_double(Fields& fields, const char* name) {
  const Json& value = *HOLDFAST_TRY(fields.any(name));
  if (value.is_number()) return value.get<double>();
  return invalid("{}.{}: is not a number; expected one", fields.where(), name);
}

Result<Thresholds> read_thresholds(const Json& json, const std::string& where) {
  Fields fields = HOLDFAST_TRY(Fields::of(json, where));
  Thresholds thresholds;
  thresholds.extreme_loss = HOLDFAST_TRY(read_double(fields, "extreme_loss"));
  thresholds.degraded_accuracy = HOLDFAST_TRY(read_double(fields, "degraded_accuracy"));
  thresholds.degraded_loss = HOLDFAST_TRY(read_double(fields, "degraded_loss"));
  thresholds.spiked_loss = HOLDFAST_TRY(read_double(fields, "spiked_loss"));
  return thresholds;
}

Result<void> check_kind(Fields& fields) {
  const std::string kind = HOLDFAST_TRY(fields.text("holdfast"));
  if (kind != kCampaignKind) {
    return invalid("{}: is a \"{}\"; expected a \"{}\"", fields.where(), kind,
                   kCampaignKind);
  }
  const int64_t version = HOLDFAST_TRY(fields.integer("version"));
  if (version == kCampaignVersion) return {};
  return unsupported("{}: version {}; expected {}", fields.where(), version,
                     kCampaignVersion);
}

Result<void> read_base(Fields& fields, CampaignFile& file) {
  Fields base = HOLDFAST_TRY(
      Fields::of(*HOLDFAST_TRY(fields.any("base")), fields.where() + ": base"));
  file.base = HOLDFAST_TRY(base.text("path"));
  file.base_kind = HOLDFAST_TRY(base.text("kind"));
  file.base_digest = HOLDFAST_TRY(base.text("digest"));
  return {};
}

Result<std::string> text_of_json(const Json& json, const std::string& where) {
  if (json.is_string()) return json.get<std::string>();
  return invalid("{}: is no text", where);
}

Result<void> read_settings(Fields& fields, CampaignFile& file) {
  const std::string where = fields.where();
  const Json& settings = *HOLDFAST_TRY(fields.any("settings"));
  if (!settings.is_object()) return invalid("{}: settings: is no object", where);
  for (const auto& [name, value] : settings.items()) {
    file.settings.emplace_back(
        name, HOLDFAST_TRY(text_of_json(value, fmt::format("{}: {}", where, name))));
  }
  const Json& command = *HOLDFAST_TRY(fields.array("command"));
  for (const Json& word : command) {
    file.command.push_back(HOLDFAST_TRY(text_of_json(word, where + ": command")));
  }
  return {};
}

Result<CampaignFile> read_fields(Fields& fields) {
  HOLDFAST_TRY(check_kind(fields));
  CampaignFile file;
  HOLDFAST_TRY(read_base(fields, file));
  HOLDFAST_TRY(read_settings(fields, file));
  file.thresholds = HOLDFAST_TRY(read_thresholds(
      *HOLDFAST_TRY(fields.any("thresholds")), fields.where() + ": thresholds"));
  file.deadline = HOLDFAST_TRY(read_double(fields, "deadline"));
  file.golden_seconds = HOLDFAST_TRY(read_double(fields, "golden_seconds"));
  file.golden = HOLDFAST_TRY(log_from_json(*HOLDFAST_TRY(fields.any("golden")),
                                           fields.where() + ": golden"));
  file.sites = HOLDFAST_TRY(fields.integer("sites"));
  const Json& predicted = *HOLDFAST_TRY(fields.any("predicted"));
  if (predicted.is_number()) file.predicted = predicted.get<double>();
  return file;
}

Result<std::string> digest_of(Env& env, const Found& base) {
  Xxh3Stream digest;
  const std::vector<NamedFile> files = HOLDFAST_TRY(files_of(env, base));
  for (const NamedFile& file : files) {
    const auto source = HOLDFAST_TRY(FileSource::open(env, file.path));
    // The name of a single file does not matter, and it may have been moved.
    if (files.size() > 1) digest.append(bytes_of(file.name));
    for (int64_t at = 0; at < source->size(); at += kDigestWindow) {
      const int64_t count = std::min(kDigestWindow, source->size() - at);
      digest.append(HOLDFAST_TRY(source->read_bytes(at, count)));
    }
  }
  return digest.digest().hex();
}

// How many sites a request selects, as its plans say, and the share of single bits that
// are the highest one of an exponent. With legacy sampling each tensor has the same share
// of the draws.
struct SiteShare {
  int64_t sites = 0;
  double top = 0;
};

Result<SiteShare> share_of_top_bit(const Contents& contents,
                                   const PlanRequest& request) {
  const auto tensors =
      HOLDFAST_TRY(select_sites(contents.collection, roles_of(contents, request),
                                request.sites));
  const BitChoice top_bit{.field = BitChoice::Field::kTopExponent};
  const Sites sites(contents.collection, tensors, request.sites.bits,
                    request.fault.bits(), request.fault.whole_elements());
  double top = 0, of_tensors = 0;
  for (const TensorId t : tensors) {
    const Tensor& tensor = contents.collection.tensor(t);
    const auto bits = chosen_bits(tensor.dtype, request.sites.bits);
    const auto tops = chosen_bits(tensor.dtype, top_bit);
    const auto both = std::ranges::count_if(
        bits, [&](int bit) { return std::ranges::count(tops, bit) > 0; });
    top += static_cast<double>(tensor.shape.elements()) * static_cast<double>(both);
    if (!bits.empty()) {
      of_tensors += static_cast<double>(both) / static_cast<double>(bits.size());
    }
  }
  const auto legacy = of_tensors / static_cast<double>(tensors.size());
  const auto all = static_cast<double>(std::max<int64_t>(sites.size(), 1));
  return SiteShare{.sites = sites.size(),
                   .top = request.sampling == Sampling::kLegacy ? legacy : top / all};
}

void add_prediction(CampaignFile& file, const SiteShare& share,
                    const PlanRequest& request) {
  file.sites = share.sites;
  if (request.fault.kind != Fault::Kind::kFlip || request.finite != Finite::kAny) {
    return;
  }
  const double draws = request.rate ? *request.rate * static_cast<double>(share.sites)
                                    : static_cast<double>(request.count);
  file.predicted = 1 - std::pow(1 - share.top, draws);
}

// A text by which equal lists of plans are known.
std::string digest_of_plans(const std::vector<FlipPlan>& plans) {
  if (plans.empty()) return "";
  Xxh3Stream digest;
  for (const FlipPlan& plan : plans) digest.append(bytes_of(encode_flip_plan(plan)));
  return digest.digest().hex();
}

std::string yes_or_no(bool flag) { return flag ? "yes" : "no"; }

}  // namespace

std::string encode_campaign(const CampaignFile& file) {
  OrderedJson settings = OrderedJson::object();
  for (const auto& [name, value] : file.settings) settings[name] = value;
  const OrderedJson json{
      {"version", kCampaignVersion},
      {"holdfast", kCampaignKind},
      {"base",
       {{"path", file.base}, {"kind", file.base_kind}, {"digest", file.base_digest}}},
      {"settings", settings},
      {"command", file.command},
      {"thresholds", thresholds_json(file.thresholds)},
      {"deadline", file.deadline},
      {"golden_seconds", file.golden_seconds},
      {"golden", log_to_json(file.golden)},
      {"sites", file.sites},
      {"predicted", file.predicted ? OrderedJson(*file.predicted) : nullptr}};
  return json.dump(1, ' ', true, OrderedJson::error_handler_t::replace) + "\n";
}

Result<CampaignFile> decode_campaign(std::string_view text, const std::string& where) {
  const Json json = HOLDFAST_TRY(parse_json(text, where));
  Fields fields = HOLDFAST_TRY(Fields::of(json, where));
  Result<CampaignFile> file = read_fields(fields);
  if (file.ok() || file.error().code() == ErrorCode::kUnsupported) return file;
  return file.error().as(ErrorCode::kInvalid);
}

Result<CampaignFile> read_campaign(Env& env, const Path& folder) {
  const Path path = folder / kCampaignFile;
  const Result<std::string> text = env.read_text(path);
  if (!text.ok() && text.error().code() == ErrorCode::kNotFound) {
    return not_found("{}: there is no {}; expected the folder of a campaign",
                     folder.native(), kCampaignFile);
  }
  if (!text.ok()) return text.error();
  return decode_campaign(*text, path.native());
}

Result<void> check_same_campaign(const CampaignFile& there, const CampaignFile& wanted,
                                 const Path& folder) {
  const auto differs = [&](const std::string& what, const std::string& seen,
                           const std::string& asked) {
    return conflict(
        "{}: is a campaign with {} \"{}\", not \"{}\"; expected another folder",
        folder.native(), what, seen, asked);
  };
  if (there.base_digest != wanted.base_digest) {
    return conflict("{}: is a campaign of another base, {}; expected another folder",
                    folder.native(), there.base);
  }
  for (const auto& [name, value] : wanted.settings) {
    const auto found = std::ranges::find(there.settings, name,
                                         &std::pair<std::string, std::string>::first);
    const std::string seen = found == there.settings.end() ? "" : found->second;
    if (seen != value) return differs(name, seen, value);
  }
  if (there.command != wanted.command) {
    return conflict("{}: is a campaign of another command; expected another folder",
                    folder.native());
  }
  if (there.thresholds != wanted.thresholds) {
    return differs("thresholds", to_string(there.thresholds),
                   to_string(wanted.thresholds));
  }
  // An earlier version may have taken other tensors for the same roles or layers.
  if (there.sites != wanted.sites) {
    return differs("a number of sites of", fmt::format("{}", there.sites),
                   fmt::format("{}", wanted.sites));
  }
  if (wanted.deadline > 0 && there.deadline != wanted.deadline) {
    return differs("a deadline of", fmt::format("{} s", there.deadline),
                   fmt::format("{} s", wanted.deadline));
  }
  return {};
}

Result<CampaignFile> describe_campaign(Env& env, const CampaignOptions& options,
                                       const Found& base) {
  CampaignFile file{.base = options.base.native(),
                    .base_kind = std::string(base.kind()),
                    .base_digest = {},
                    .settings = options.selection,
                    .command = options.command,
                    .thresholds = options.thresholds,
                    .deadline = options.deadline.value_or(0)};
  file.base_digest = HOLDFAST_TRY(digest_of(env, base));
  for (auto& setting : std::vector<std::pair<std::string, std::string>>{
           {"fault", options.request.fault.text()},
           {"seed", fmt::format("{}", options.request.seed)},
           {"anywhere", yes_or_no(options.anywhere)},
           {"plans", digest_of_plans(options.plans)},
           {"checksums", std::string(name_of(options.fixing))},
           {"state", yes_or_no(options.state)},
           {"serve", yes_or_no(options.serve)},
           {"roles from", options.roles.empty() ? "" : options.roles.text()}}) {
    file.settings.push_back(std::move(setting));
  }
  if (!options.anywhere && options.plans.empty()) {
    const Contents contents = HOLDFAST_TRY(open_to_alter(env, base));
    PlanRequest request = options.request;
    request.roles = HOLDFAST_TRY(roles_in(contents, base, options.roles));
    add_prediction(file, HOLDFAST_TRY(share_of_top_bit(contents, request)), request);
  }
  return file;
}

}  // namespace holdfast
