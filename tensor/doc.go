// Package tensor knows what the bytes of a tensor mean: element types, row
// shapes, strides, and which row of a payload goes to which row of a column.
//
// # What it is
//
// The types of DLPack (DType, DLTensor and its managed forms) with their names
// and limits, tensors out to and in from other libraries of the process
// (ExportManaged, ImportManaged), the schema of an attribute, the rules that turn
// what a user hands in into rows of that schema (FoldFixed, Gather), and the rules
// that say which rows are meant (Selection). Everything here works on byte slices
// that others own; only a copy that was asked for has memory of its own, and none
// is mapped.
//
// # Its place in the data's way
//
// A client describes its array as a Tensor and has it folded and gathered into
// a staging block; the broker folds and resolves once more, because it believes
// nothing, and copies rows into the building version with Selection.Apply or
// CopyRows; a reader gets Schema.View of a sealed block, and a library in C an
// export of that view.
//
// # Invariants
//
//  1. A DType that passed Validate has 1 to 255 lanes and a whole number of
//     bytes; Size is never 0.
//  2. A Schema that passed Validate has a row of at least one byte whose size
//     fits an int64.
//  3. No byte is read or written before every index and extent of the call has
//     been checked against the slices at hand. A call that returns an error
//     has written nothing.
//  4. Strides count elements, never bytes. Exports always write them.
//  5. Data are gathered, never scattered: entry i of an index map names the
//     source row of target i. Of duplicate targets the last one wins.
//  6. Kind, element type and semantic are declared, never guessed from a shape.
//  7. What is exported stays, and stays in its place, until its deleter was called:
//     machine code that runs on any thread, calls no Go and waits for nobody. What
//     follows from it, release, runs on the one goroutine that collects exports.
//
// # When a peer dies or lies
//
// Nothing here waits for a peer. Shapes, strides, maps and masks must be
// private copies: a peer that changes them after the check would defeat it. The
// bytes of rows may lie in shared memory and change at any time; the copy then
// holds some mixture, and no rule of this package depends on their values. Bad
// input gives an *Error whose text names the input and the numbers compared.
//
// # Not here
//
// Memory of the stage and who frees it (shm, snapshot; the clients say what an
// export of theirs holds), device memory (cudaipc), Python's capsules, the numbers
// of status codes on the wire (protocol).
package tensor
