#include "holdfast/cli/plan_report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "holdfast/cli/text.h"
#include "holdfast/plan/plan_json.h"

namespace holdfast {
namespace {

constexpr size_t kMatrixHosts = 8;
constexpr size_t kLinksShown = 10;
constexpr size_t kPositionsShown = 64;

std::string share(int64_t part, int64_t whole) {
  if (whole == 0) return human_bytes(part);
  const double percent = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  return fmt::format("{}  {:>3.0f} %", human_bytes(part), percent);
}

std::string figure_text(const FigureRow& row, const Figures& figures) {
  const int64_t figure = figures.*row.figure;
  switch (row.unit) {
    case FigureRow::Unit::kShare: return share(figure, figures.needed);
    case FigureRow::Unit::kBytes: return human_bytes(figure);
    case FigureRow::Unit::kNanoseconds: return human_time(figure);
  }
  return "";
}

std::string matrix_text(const Plan& plan, const Topology& topology) {
  Table table;
  std::vector<std::string> head{"from \\ to"};
  for (const Host& host : topology.hosts) head.push_back(printable(host.name));
  table.add(head);
  for (HostId from = 0; from < topology.hosts.size(); ++from) {
    std::vector<std::string> row{printable(topology.hosts[from].name)};
    for (HostId to = 0; to < topology.hosts.size(); ++to) {
      const auto link = std::ranges::find_if(
          plan.links, [&](const LinkLoad& l) { return l.from == from && l.to == to; });
      row.push_back(link == plan.links.end() ? "-" : human_bytes(link->bytes));
    }
    table.add(row);
  }
  return table.text();
}

std::string busiest_text(const Plan& plan, const Topology& topology, size_t most) {
  std::vector<LinkLoad> links = plan.links;
  std::ranges::stable_sort(links, std::greater{}, &LinkLoad::bytes);
  const size_t shown = std::min(links.size(), most);
  Table table;
  for (size_t i = 0; i < shown; ++i) {
    table.add({fmt::format("{} -> {}", printable(topology.hosts[links[i].from].name),
                           printable(topology.hosts[links[i].to].name)),
               human_bytes(links[i].bytes)});
  }
  std::string text = table.text();
  if (links.size() > shown) {
    text += fmt::format("and {} more (-v lists all)\n", links.size() - shown);
  }
  return text;
}

// The numbers with spaces between them. Thousands of them are cut, unless `all`.
std::string list_text(std::span<const uint32_t> numbers, bool all) {
  const size_t shown =
      all || numbers.size() <= kPositionsShown ? numbers.size() : kPositionsShown;
  std::string text = fmt::format("{}", fmt::join(numbers.first(shown), " "));
  if (shown < numbers.size()) {
    text += fmt::format(" and {} more (-v lists all)", numbers.size() - shown);
  }
  return text;
}

}  // namespace

std::string figures_text(const std::vector<PlanColumn>& columns) {
  Table table;
  std::vector<std::string> head{""};
  for (const PlanColumn& column : columns) head.push_back(column.title);
  if (columns.size() > 1) table.add(head);
  const auto add = [&](std::string_view words, const auto& cell) {
    std::vector<std::string> row{std::string(words)};
    for (const PlanColumn& column : columns) row.push_back(cell(column.plan));
    table.add(std::move(row));
  };
  for (const FigureRow& row : kFigureRows) {
    add(row.words, [&](const Plan& plan) { return figure_text(row, plan.figures); });
  }
  add("moves", [](const Plan& plan) { return human_count(std::ssize(plan.moves)); });
  return table.text();
}

std::string links_text(const Plan& plan, const Topology& topology, bool all) {
  if (plan.links.empty()) return "no bytes between devices\n";
  if (topology.hosts.size() <= kMatrixHosts) return matrix_text(plan, topology);
  return busiest_text(plan, topology, all ? plan.links.size() : kLinksShown);
}

std::string holders_text(const Plan& plan, const Topology& topology) {
  Table table("llr");
  table.add({"device", "host", "sends", "passes on", "receives"});
  for (size_t h = 0; h < plan.holders.size(); ++h) {
    const HolderLoad& load = plan.loads[h];
    table.add({printable(plan.holders[h].name),
               printable(topology.hosts[plan.holders[h].host].name),
               human_bytes(load.sent), human_bytes(load.forwarded),
               human_bytes(load.received)});
  }
  return table.text();
}

std::string speed_text(const Topology& topology) {
  return fmt::format("times assume that each device sends {} a second\n",
                     human_bytes(topology.memory_bandwidth));
}

std::string cost_text(const Cost& cost) {
  const auto time = [](double seconds) {
    return human_time(static_cast<int64_t>(std::llround(seconds * 1e9)));
  };
  std::string text = fmt::format("by the given speeds it takes {}; busiest: {}\n",
                                 time(cost.seconds), name_of(cost.busiest));
  for (size_t i = 0; i < kLinks; ++i) {
    if (cost.each[i] == 0) continue;
    text += fmt::format("  {} {}\n", name_of(static_cast<Link>(i)), time(cost.each[i]));
  }
  return text;
}

std::string placement_text(const Resize& resize, int64_t group, bool all) {
  const Placement& placement = *resize.placement;
  std::string text =
      "position p goes to device: " + list_text(placement.device_of_position, all) +
      "\n";
  if (!placement.released.empty()) {
    text += "devices to release: " + list_text(placement.released, all) + "\n";
  }
  const std::string cost = human_bytes(placement.kept_bound - placement.kept);
  if (placement.kept == placement.kept_bound) {
    if (group > 1) text += "keeping tensor-parallel groups on hosts costs nothing\n";
  } else if (placement.exact) {
    text += fmt::format(
        "keeping tensor-parallel groups on hosts costs {} that could stay in place\n",
        cost);
  } else {
    text += fmt::format(
        "not proven best: at most {} more could stay in place{}\n", cost,
        group > 1 ? " if tensor-parallel groups were not kept on hosts" : "");
  }
  return text;
}

}  // namespace holdfast
