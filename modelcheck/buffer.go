package modelcheck

// Depth is the most stores that a StoreBuffer can hold.
const Depth = 4

// StoreBuffer is one processor's stores that other processors do not see yet, oldest first. Its zero value is empty.
// It is a comparable value, so that it can be part of a state; entries past the count are always zero, so that equal
// buffers compare equal.
type StoreBuffer struct {
	count  uint8
	addr   [Depth]uint8
	values [Depth]uint8
}

// Empty reports whether all stores have reached memory: the condition for a fence to complete.
func (b *StoreBuffer) Empty() bool { return b.count == 0 }

// Room reports whether another store fits in a buffer of at most depth entries; while it does not, the processor waits.
func (b *StoreBuffer) Room(depth int) bool { return int(b.count) < depth }

// Store puts a store into the buffer. Preconditions: Room said yes.
func (b *StoreBuffer) Store(addr, value uint8) {
	b.addr[b.count], b.values[b.count] = addr, value
	b.count++
}

// Load returns what this processor sees at addr: the youngest own store to it, else memory.
func (b *StoreBuffer) Load(mem []uint8, addr uint8) uint8 {
	for i := int(b.count) - 1; i >= 0; i-- {
		if b.addr[i] == addr {
			return b.values[i]
		}
	}
	return mem[addr]
}

// Drain moves the oldest store to memory and returns it. Preconditions: the buffer is not empty.
func (b *StoreBuffer) Drain(mem []uint8) (addr, value uint8) {
	addr, value = b.addr[0], b.values[0]
	mem[addr] = value
	b.count--
	copy(b.addr[:], b.addr[1:])
	copy(b.values[:], b.values[1:])
	b.addr[b.count], b.values[b.count] = 0, 0
	return addr, value
}
