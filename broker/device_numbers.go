package broker

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"callboard/cudaipc"
	"callboard/shm"
)

// Attributes remember their device by the broker's number for it, and outlive the broker. So the numbers do as well: the
// generation's directory has a file with the UUID of device 0 in its first line, and so on. A device that is not served
// in this life keeps its number, and what lies on it is refused until it is there again; a new one gets the next.
const (
	numbersName = "devices"
	numbersMax  = 64 // as clients have room for
)

// readNumbers reads which device has which number. A generation that never served one has no such file.
func readNumbers(dir string) (numbers []cudaipc.UUID, err error) {
	path := filepath.Join(dir, numbersName)
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(raw)) {
		uuid, ok := parseUUID(strings.TrimSuffix(line, "\n"))
		if !ok || slices.Contains(numbers, uuid) || len(numbers) == numbersMax {
			return nil, damaged("%s, line %d, is %.60q: expected at most %d UUIDs of devices, each once", path, len(numbers)+1, line, numbersMax)
		}
		numbers = append(numbers, uuid)
	}
	return numbers, nil
}

// parseUUID reads what UUID.String writes.
func parseUUID(text string) (uuid cudaipc.UUID, ok bool) {
	raw, _ := hex.DecodeString(strings.ReplaceAll(strings.TrimPrefix(text, "GPU-"), "-", ""))
	copy(uuid[:], raw)
	return uuid, uuid.String() == text
}

// writeNumbers replaces the file in one step.
func writeNumbers(g shm.Generation, numbers []cudaipc.UUID) error {
	var text strings.Builder
	for _, uuid := range numbers {
		text.WriteString(uuid.String() + "\n")
	}
	return g.Replace(numbersName, []byte(text.String()))
}

// numberDevices gives the devices that are up at the start their indices, where numbers are those that are given already.
func (b *Broker) numberDevices(numbers []cudaipc.UUID) error {
	d := b.devices
	d.mu.Lock()
	d.numbers, d.serving = numbers, make([]*device, len(numbers))
	d.mu.Unlock()
	for _, g := range d.first {
		if err := b.serveDevice(g); err != nil {
			return err
		}
	}
	return nil
}

// numberOf is the index of a device, a new one if it has none. It stands in the generation's directory before anybody
// hears of it. Under mu.
func (d *devices) numberOf(g shm.Generation, uuid cudaipc.UUID) (uint32, error) {
	if i := slices.Index(d.numbers, uuid); i >= 0 {
		return uint32(i), nil
	}
	if len(d.numbers) == numbersMax {
		return 0, fmt.Errorf("device %v is one more than the %d that a stage can have in its life", uuid, numbersMax)
	}
	numbers := append(slices.Clone(d.numbers), uuid)
	if err := writeNumbers(g, numbers); err != nil {
		return 0, err
	}
	d.numbers, d.serving = numbers, append(d.serving, nil)
	return uint32(len(numbers) - 1), nil
}

// named tells whether an index is a device's that is not served now, and which.
func (d *devices) named(index uint32, uuid *[16]byte) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if index >= uint32(len(d.serving)) || d.serving[index] != nil {
		return false
	}
	*uuid = d.numbers[index]
	return true
}

// absent says for people which device has an index and is not served now, and why; "": none.
func (d *devices) absent(index uint32) string {
	var uuid cudaipc.UUID
	if !d.named(index, (*[16]byte)(&uuid)) {
		return ""
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	why := "the driver does not show it, or serve --gpu does not name it"
	for _, g := range d.known {
		if g.info.UUID == uuid && g.info.Name != "" {
			why = reasonOf(g.verdict)
		}
	}
	if d.config.Mode == GPUOff {
		why = offText
	} else if len(d.known) == 0 {
		why = reasonOf(d.verdict)
	}
	return fmt.Sprintf("device %d, %v, is not served now: %s", index, uuid, why)
}
