// Package modelcheck explores small concurrent protocols exhaustively, breadth first, with the store buffers of a
// total-store-order processor.
//
// # What it is
//
// A model is a start state and a function that lists every step enabled in a state. [Explore] visits every reachable
// state once. A fault is a step that a model marks with [Steps.Fail], or a state from which nothing can move and in
// which [Model.Rest] says that it should. Because the search is breadth first, the steps it prints are the fewest that
// lead to the fault.
//
// # Its place in the data's way
//
// None at run time. snapshot/model and ring/model describe the pin, reclaim and doorbell rules as such models, and
// their tests run them; no binary links this package.
//
// # Invariants
//
//  1. A state is a comparable value without pointers: two histories that lead to the same value are one state.
//  2. A model does at most one access to shared memory in a step, so that every interleaving is seen.
//  3. A load sees the youngest store of its own buffer, else memory. Stores reach memory in the order they were made,
//     each at any later time, as a step of its own. A fence, or a store that is a full barrier, is enabled only while
//     the buffer is empty. This is what x86-64 promises; weaker machines are not modelled.
//  4. Equal models give equal outcomes: the order of the search, the count of states and the printed steps depend on
//     nothing but the model.
//
// # When a peer dies or lies
//
// The explorer has no peers. A search that reaches its limit of states says so in [Outcome.Complete]; it never calls a
// protocol sound that it has not explored to the end.
//
// # Not here
//
// Liveness under fairness, weaker memory orders, symmetry or partial-order reduction. Where a rule says "in the end",
// the model states it as a safety property (for instance: a reader never retries unless the epoch has moved).
package modelcheck
