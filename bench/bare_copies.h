// Copies without a plan, beside which a change of layout is measured: what a machine can do
// at most.
#pragma once

#include "holdfast/base/bytes.h"
#include "holdfast/exchange/shared_ring.h"

namespace holdfast {

// Copies by so many threads.
void copy_by_threads(int threads, ByteView from, ByteSpan to);

// The two sides of a copy between processes. They wait without an end.
void send_through(SharedRing& ring, ByteView from);
void receive_through(SharedRing& ring, ByteSpan to);

// Copies over a connection of this machine with itself.
void copy_over_tcp(ByteView from, ByteSpan to);

}  // namespace holdfast
