// Package proof is what the tests of all models do.
//
// # What it is
//
// Row makes a line of a search, Holds and Caught say what must have come out, Compare holds a table of lines to the one
// that is kept in RESULTS.md beside the model. Its flags are -model.large, -model.update and -model.trace.
//
// # Its place in the data's way
//
// Nowhere: only tests of packages named model import it.
//
// # Invariants
//
// A table is compared byte for byte: states and steps are part of what was found.
//
// # When a peer dies or lies
//
// There is none.
//
// # Not here
//
// The search itself (modelcheck), what is searched (the models).
package proof
