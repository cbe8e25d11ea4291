// Package gorgonia hands device memory between the Go client and gorgonia.org/cu.
//
// # What it is
//
// A module of its own, for programs that have gorgonia.org/cu already: it gives groups in
// device memory as cu's pointers and events, and cu's streams, events and memory as the
// client takes them. Nothing is copied, and nothing changes its owner.
//
// Building it needs what cu needs: cgo, CUDA's headers up to version 12, and libcuda to
// link with. A program that imports cu ends at its start where there is no GPU. The rest of
// Callboard needs neither (docs/adr/0010-cuda-driver-by-purego.md).
//
// # Its place in the data's way
//
//	MapAttribute ─▶ Pointer(group) ─▶ a kernel on a cu.Stream ─▶ Commit(ctx, After(stream, nil))
//	ReadAttributes ─▶ Pointer(group) ─▶ a kernel ─▶ stream.Synchronize ─▶ group.Release
//
// # Invariants
//
//  1. Memory of the stage is imported into the device's primary context: work with it in
//     Device.RetainPrimaryCtx, not in a context of MakeContext.
//  2. Pointers are good as long as their group is: until its unmap, or its Release.
//  3. Events of the stage are the broker's: they may be waited for, never destroyed.
//
// # When a peer dies or lies
//
// As for the Go client.
//
// # Not here
//
// Tensors of gorgonia.org/tensor: they take a pointer's memory by their own options.
package gorgonia
