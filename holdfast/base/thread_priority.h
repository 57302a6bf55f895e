// Scheduling of background threads, so that they do not hold up the thread that trains.
#pragma once

namespace holdfast {

// From now on the calling thread does not push aside the thread that wakes it, but
// waits for its turn. So save() returns before the copying begins. The turns of the
// calling thread also become short, so that other threads do not wait long, such as one
// that receives a message from another rank. The thread's share of the processor stays
// the same. Does nothing if the system lacks such a policy, or if somebody has already
// chosen a scheduling policy for the process.
void use_batch_scheduling();

// For a thread whose work is not urgent: from now on it runs only when no other thread
// wants the processor. Does nothing in the same cases as use_batch_scheduling().
void use_idle_scheduling();

}  // namespace holdfast
