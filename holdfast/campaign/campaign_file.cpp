#include "holdfast/campaign/campaign_file.h"

#include <algorithm>
#include <cmath>

#include "holdfast/base/json_fields.h"
#include "holdfast/base/xxh3.h"
#include "holdfast/corruption/sites.h"
#include "holdfast/env/source_sink.h"

namespace holdfast {
namespace {

constexpr int64_t kDigestWindow = int64_t{4} << 20;

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

void fields(Is<CampaignFile> auto& self, auto&& field) {
  field.version(1);
  field.kind("campaign");
  field.object("base", [&](auto&& base) {
    base("path", self.base);
    base("kind", self.base_kind);
    base("digest", self.base_digest);
    base.allow_unknown();
  });
  field("settings", self.settings);
  field("command", self.command);
  field("thresholds", self.thresholds);
  field("deadline", self.deadline);
  field("golden_seconds", self.golden_seconds);
  field("golden", self.golden);
  field("sites", self.sites);
  field("predicted", self.predicted);
  field.allow_unknown();
}

std::string encode_campaign(const CampaignFile& file) {
  return to_json_text(file, {.indent = 1, .ascii = true}) + "\n";
}

Result<CampaignFile> decode_campaign(std::string_view text, const std::string& where) {
  return from_json<CampaignFile>(text, where);
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
