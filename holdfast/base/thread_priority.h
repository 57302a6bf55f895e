// How threads of the background behave towards the one that trains.
#pragma once

namespace holdfast {

// From now on the calling thread waits for its turn when it is woken, instead of taking the
// core of whoever wakes it: save() shall return before the copying begins. And its turns are
// short, so that it does not keep others waiting, such as a rank that hears of another. Its
// share of the processor stays what it is. Does nothing where the system knows no such
// thing, or where somebody has chosen a scheduling policy for the process.
void use_batch_scheduling();

// The same for a thread that has time: it gets what nobody else wants.
void use_idle_scheduling();

}  // namespace holdfast
