package ring

import (
	"testing"

	"callboard/protocol"
)

// BenchmarkRoundTrip is submit, drain, complete, flush, poll on one core: what the
// rings themselves cost, without sleep.
func BenchmarkRoundTrip(b *testing.B) {
	p := newPair(b, 256, 512)
	dst := make([]protocol.SubmissionEntry, 16)
	e, c := op(1), done(1)
	b.ReportAllocs()
	for id := uint64(1); b.Loop(); id++ {
		e.OpID, c.OpID = id, id
		if err := p.client.Submit(&e); err != nil {
			b.Fatal(err)
		}
		if n, err := p.server.Drain(dst); n != 1 || err != nil {
			b.Fatal(n, err)
		}
		p.server.Complete(&c)
		p.server.Flush()
		if ok, err := p.client.Poll(&c); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}

// BenchmarkRoundTripOf16 is the same with 16 ops in flight; ns/op are for one op.
func BenchmarkRoundTripOf16(b *testing.B) {
	p := newPair(b, 256, 512)
	dst := make([]protocol.SubmissionEntry, 16)
	e, c := op(1), done(1)
	id := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		id++
		e.OpID = id
		if err := p.client.Submit(&e); err != nil {
			b.Fatal(err)
		}
		if id%16 != 0 {
			continue
		}
		n, err := p.server.Drain(dst)
		if n != 16 || err != nil {
			b.Fatal(n, err)
		}
		for range n {
			p.server.Complete(&c)
		}
		p.server.Flush()
		for range n {
			if ok, err := p.client.Poll(&c); !ok || err != nil {
				b.Fatal(ok, err)
			}
		}
	}
}

// BenchmarkIdleDrain is what a channel without news costs the loop in each pass.
func BenchmarkIdleDrain(b *testing.B) {
	p := newPair(b, 256, 512)
	dst := make([]protocol.SubmissionEntry, 16)
	for b.Loop() {
		_, _ = p.server.Drain(dst)
	}
}

// BenchmarkPin is acquire, store, release: what one read costs beside its checks.
func BenchmarkPin(b *testing.B) {
	p := newPair(b, 4, 4)
	table, err := NewPinTable(p.mem, p.layout)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		slot, err := table.Acquire()
		if err != nil {
			b.Fatal(err)
		}
		table.Store(slot, 1, 2)
		table.Release(slot)
	}
}

// BenchmarkScan4096 is a scan of a full table.
func BenchmarkScan4096(b *testing.B) {
	l, err := NewLayout(4, 4, 4096, PageBytes, PageBytes)
	if err != nil {
		b.Fatal(err)
	}
	mem := heapBytes(l.TotalBytes)
	table, err := NewPinTable(mem, l)
	if err != nil {
		b.Fatal(err)
	}
	pins, err := NewPins(mem, l)
	if err != nil {
		b.Fatal(err)
	}
	for range 4096 {
		slot, _ := table.Acquire()
		table.Store(slot, 1, 2)
	}
	count := 0
	fn := func(int, uint64, uint32) { count++ }
	b.ReportAllocs()
	for b.Loop() {
		_ = pins.Scan(fn)
	}
}
