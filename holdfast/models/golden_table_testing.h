// For tests: how many bytes must move in known changes of a GPT's parallel
// configuration.
//
// It is plain data, with the conventions of elementwise_testing.h. The figures were
// first found by interval arithmetic; golden_test.cpp compares them with a walk over
// all elements.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "holdfast/models/elementwise_testing.h"

namespace holdfast::elementwise {

inline constexpr Gpt kTinyGpt{
    .layers = 8, .hidden = 64, .vocabulary = 1000, .positions = 32};
inline constexpr int64_t kTinyParameters = 466'048;

// These models have 24, 32 and 32 heads.
inline constexpr Gpt kGpt1300M{
    .layers = 24, .hidden = 2064, .vocabulary = 50257, .positions = 1024};
inline constexpr Gpt kGpt2700M{
    .layers = 32, .hidden = 2560, .vocabulary = 50257, .positions = 1024};
inline constexpr Gpt kGpt6700M{
    .layers = 32, .hidden = 4096, .vocabulary = 50257, .positions = 1024};

struct TinyRow {
  Transition change;  // each side: tp, pp, dp
  int64_t needed;
  int64_t moved;
  int64_t moved_best;
};

inline constexpr std::array<TinyRow, 15> kTinyRows{{
    {{{1, 1, 1}, {2, 1, 1}}, 6'598'144, 3'288'320, 3'288'320},
    {{{2, 1, 1}, {4, 1, 1}}, 6'745'088, 4'979'968, 3'361'792},
    {{{4, 1, 1}, {2, 1, 1}}, 6'598'144, 4'833'024, 3'214'848},
    {{{4, 1, 1}, {8, 1, 1}}, 7'038'976, 5'936'000, 3'508'736},
    {{{1, 1, 2}, {1, 1, 4}}, 26'098'688, 13'049'344, 13'049'344},
    {{{1, 1, 4}, {1, 1, 2}}, 13'049'344, 0, 0},
    {{{1, 2, 1}, {1, 4, 1}}, 7'420'672, 5'096'448, 2'799'104},
    {{{1, 4, 1}, {1, 2, 1}}, 7'420'672, 5'096'448, 2'799'104},
    {{{1, 1, 1}, {1, 2, 1}}, 7'420'672, 3'696'896, 3'696'896},
    {{{2, 2, 2}, {4, 2, 1}}, 7'641'088, 3'695'104, 0},
    {{{2, 2, 2}, {2, 4, 1}}, 7'494'144, 0, 0},
    {{{4, 2, 1}, {2, 2, 2}}, 14'988'288, 11'042'304, 7'347'200},
    {{{8, 1, 1}, {1, 8, 1}}, 7'420'672, 6'444'928, 6'423'424},
    {{{4, 2, 2}, {4, 2, 1}}, 7'641'088, 2'870'784, 0},
    {{{2, 2, 2}, {2, 2, 3}}, 22'482'432, 10'318'336, 7'494'144},
}};

// Numbers in units of 1e9 bytes, rounded to the digits given here; "0" is exactly zero.
struct Printed {
  std::string_view needed;
  std::string_view moved;
  std::string_view moved_best;
  std::string_view crossing;
  std::string_view crossing_each;
};

// `printed` comes from interval arithmetic. `exact` has the bytes that the walk found,
// so that another derivation must agree in every byte and not only in five digits.
struct LargeRow {
  Transition change;
  Printed printed;
  Figures exact;
  // The least bytes moved if each tensor-parallel group stays on one host, or fills
  // several hosts.
  std::string_view moved_grouped;
};

inline constexpr std::array<LargeRow, 7> kLargeRows{{
    {{{4, 2, 1}, {4, 2, 2}},
     {"192.5", "141.4", "96.3", "141.15", "141.4"},
     {192'500'826'112, 141'376'471'040, 96'250'413'056, 141'150'076'928,
      141'376'471'040},
     "96.3"},
    {{{4, 2, 1}, {4, 4, 1}},
     {"96.3", "70.6", "45.1", "70.55", "70.6"},
     {96'250'413'056, 70'570'795'008, 45'125'599'232, 70'545'678'336, 70'570'795'008},
     "45.1"},
    {{{4, 2, 1}, {8, 2, 1}},
     {"96.5", "89.948", "48.2", "70.61", "70.8"},
     {96'529'793'024, 89'947'676'672, 48'210'821'120, 70'612'770'816, 70'839'164'928},
     "48.2"},
    {{{4, 2, 2}, {4, 2, 1}},
     {"96.3", "45.1", "0", "45.11", "45.1"},
     {96'250'413'056, 45'126'057'984, 0, 45'109'198'848, 45'126'057'984},
     "0"},
    {{{8, 2, 1}, {4, 2, 1}},
     {"96.3", "89.7", "47.9", "70.54", "70.6"},
     {96'250'413'056, 89'668'296'704, 47'931'441'152, 70'542'925'824, 70'559'784'960},
     "71.9"},
    {{{2, 4, 2}, {2, 4, 1}},
     {"96.1", "70.6", "0", "70.55", "70.6"},
     {96'110'723'072, 70'554'050'560, 0, 70'545'678'336, 70'554'050'560},
     "0"},
    {{{2, 4, 1}, {2, 2, 1}},
     {"96.1", "70.6", "45.1", "45.11", "45.1"},
     {96'110'723'072, 70'554'050'560, 45'114'589'184, 45'109'198'848, 45'114'818'560},
     "45.1"},
}};

struct TotalRow {
  Gpt gpt;
  std::string_view total;  // the size of the state without replicas, in 1e9 bytes
};

inline constexpr std::array<TotalRow, 3> kTotalRows{{
    {kGpt1300M, "18.7"},
    {kGpt2700M, "37.1"},
    {kGpt6700M, "93.2"},
}};

}  // namespace holdfast::elementwise
