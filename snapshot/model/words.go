package model

import "fmt"

// The sentences for a store that reaches memory, by the word it goes to: made once, since a search takes millions of
// such steps.
var brokerDrains, readerDrains = func() (b, r [memoryWords]string) {
	for addr, name := range wordNames() {
		b[addr] = "takes the broker's oldest store: " + name + " = %d"
		r[addr] = "takes the reader's oldest store: " + name + " = %d"
	}
	return b, r
}()

// wordNames names every word of shared memory.
func wordNames() (names [memoryWords]string) {
	names[epochWord] = "epoch"
	names[anyHorizonWord] = "horizon of any attribute"
	for a := range uint8(maxAttrs) {
		names[horizonOf(a)] = fmt.Sprintf("horizon of attribute %d", a)
		for i := range uint8(maxSlots) {
			for f, field := range []string{"birth", "death", "block"} {
				names[slotField(a, i, uint8(f))] = fmt.Sprintf("%s of attribute %d slot %d", field, a, i)
			}
			for w := range uint8(2) {
				names[blockWord(a, i, w)] = fmt.Sprintf("word %d of attribute %d block %d", w, a, i)
			}
		}
		for r := range uint8(maxReaders) {
			names[pinWord(r, a, 0)] = fmt.Sprintf("pin %d of reader %d", a, r)
			names[pinWord(r, a, 1)] = fmt.Sprintf("pin %d of reader %d, old word", a, r)
		}
	}
	return names
}
