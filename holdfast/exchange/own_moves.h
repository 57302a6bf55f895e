// What one rank has to do of a plan: which streams it sends and receives, what it
// copies inside its own memory, and which of its boxes stay where they are.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/exchange/pair_stream.h"
#include "holdfast/exchange/storage.h"
#include "holdfast/memory/local_state.h"
#include "holdfast/plan/plan.h"

namespace holdfast {

// A plan that ranks carry out together. All ranks have the same.
struct SharedPlan {
  const Collection* source = nullptr;
  const Collection* target = nullptr;
  const Plan* plan = nullptr;
  std::vector<int> rank_of{};  // by the plan's holders; -1 for one without a rank
};

// Returns the number of the lot of each tensor. Tensors are exchanged lot by lot, in the
// same order on all ranks. A lot is one large tensor, or tensors that follow each other in
// the target and have at most 16 MiB together.
std::vector<uint32_t> lots_of(const Collection& target);

// A piece that the rank has afterwards.
struct NewPiece {
  LocalPiece piece;  // without memory until it is made
  uint32_t lot = 0;
  // The number of the old piece that stays as this one; kNothing if it is made.
  uint32_t kept = kNothing;
};

// A box that goes from an old piece to a new one of the same rank.
struct OwnCopy {
  uint32_t from = 0;  // the number of the old piece
  uint32_t to = 0;    // the number of the new piece
  Box box;
};

class OwnMoves {
 public:
  // `old` are the rank's pieces in the source, which the caller has checked. The storage
  // says which of them stay as new ones.
  OwnMoves(const SharedPlan& shared, int rank, const LocalPieces& old,
           const PieceStorage& storage);

  // Gives a new piece its memory, and with it all boxes that are received into it or
  // passed on from it.
  void place(uint32_t number, const LocalPiece& made);

  std::map<int, PairStream> sends;     // by the other rank
  std::map<int, PairStream> receives;  // by the other rank
  std::vector<NewPiece> fresh;         // in order of lots
  std::vector<OwnCopy> copies;         // in order of `to`
  uint32_t lots = 0;                   // of the whole plan
  uint32_t arrivals = 0;  // how many boxes are received that are passed on
  // How many boxes are read from each old piece, and the lot after which the rank itself
  // does not need it any more.
  std::vector<uint32_t> readers;
  std::vector<uint32_t> last_lot;

 private:
  struct Place {
    PairStream* stream = nullptr;
    size_t part = 0;
  };
  using PieceKey = std::pair<std::string_view, Box>;  // tensor's name and box

  void list_old(const SharedPlan& shared, const LocalPieces& old);
  void list_fresh(const SharedPlan& shared, const std::vector<HolderId>& own,
                  const LocalPieces& old, const PieceStorage& storage);
  void add_copies(uint32_t number, std::string_view source_name,
                  const LocalPieces& old);
  void add_move(const SharedPlan& shared, uint32_t number, int rank,
                const LocalPieces& old);
  void add_part(PairStream& stream, const LocalPiece& piece,
                const PairStream::Part& about, const Box& box, bool is_fresh);

  std::vector<uint32_t> lot_of_;                 // by tensor of the target
  std::vector<std::string_view> source_names_;   // by tensor of the target
  std::map<PieceKey, uint32_t> old_;             // by the name in the source
  std::map<std::string_view, std::vector<uint32_t>> old_of_;  // by the name, too
  std::map<PieceKey, uint32_t> fresh_;           // by the name in the target
  std::vector<std::vector<Place>> places_;       // by new piece
  std::map<uint32_t, uint32_t> arrival_of_;      // by move
};

}  // namespace holdfast
