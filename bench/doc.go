// Program bench measures what a hand-over costs and writes it down.
//
// # What it is
//
// One round: a producer maps, stamps, unmaps and seals; a reader in another process
// follows, pins and looks. The time is taken where the reader sees the stamp. Beside
// each measurement runs relay.c, which passes turns on in the same pattern over bare
// futexes: the least that three processes can need. Their ratio is what callboard adds.
//
// # Its place in the data's way
//
//	main.go     options, the plan of what is measured
//	round.go    one run of a program that prints rounds; a broker to measure
//	program.go  building relay/*.c and latency/*.c
//	summary.go  percentiles, medians of repetitions, ratios
//	report.go   results as tables, Markdown and JSON
//	micro.go    Go's own benchmarks of the packages below, as one small table
//	cost.go     what a commit costs, and what is promised of it
//	python.go   what Python's client costs once it is warm, and what is promised of it
//	gpu*.go     what a commit and a hand-over cost in device memory, beside the card's own copy: the plan (gpu.go), the
//	            producers and readers, which are this program started again (gpu_role.go, gpu_scatter.go, gpu_latency.go),
//	            tables and promises (gpu_report.go)
//
// # Invariants
//
//	1 Callboard and relay take turns, so that what disturbs the machine disturbs both.
//	2 A ratio is of one repetition, never of figures from different times.
//	3 Every reader checks the stamp it sees: a wrong round ends the run with an error.
//	4 Results name the kind of machine, and no machine.
//	5 No time that the emulated driver took is printed or written: it says nothing of a GPU.
//
// # When a peer dies or lies
//
// Any process of a round that ends early ends the run, with its words on standard
// error. The broker ends with this program by a pipe, the others by the kernel.
//
// # Not here
//
// Correctness under load (integration), figures of the demonstration (cmd/broker).
package main
