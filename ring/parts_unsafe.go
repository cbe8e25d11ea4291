package ring

import (
	"fmt"
	"unsafe"

	"callboard/protocol"
)

// Sizes of what lies in a channel. The arrays below fail to compile when a struct
// of package protocol changes its size.
const (
	submissionBytes = uint64(unsafe.Sizeof(protocol.SubmissionEntry{}))
	completionBytes = uint64(unsafe.Sizeof(protocol.CompletionEntry{}))
	pinBytes        = uint64(unsafe.Sizeof(protocol.PinSlot{}))
	headerBytes     = uint64(unsafe.Sizeof(protocol.ChannelHeader{}))
	controlBytes    = uint64(unsafe.Sizeof(protocol.ChannelControl{}))
	directoryBytes  = uint64(unsafe.Sizeof(protocol.DirectoryHeader{}))
	doorbellBytes   = uint64(unsafe.Sizeof(protocol.Doorbell{}))
)

var (
	_ = [1]struct{}{}[submissionBytes-64]
	_ = [1]struct{}{}[completionBytes-64]
	_ = [1]struct{}{}[pinBytes-16]
	_ = [1]struct{}{}[headerBytes-256]
	// The header ends before the control words, and those before the first part.
	_ [protocol.ChannelControlOffset - headerBytes]struct{}
	_ [PageBytes - protocol.ChannelControlOffset - controlBytes]struct{}
)

// parts are a channel's parts as Go sees them. Every element lies in shared
// memory: the peer may change it at any time. So an entry is copied out once and
// only the copy is looked at; a control word is loaded once, atomically.
//
// The slices carry their bounds: an index that slipped through a check ends in
// Go's bounds check and never outside the mapping.
type parts struct {
	control     *protocol.ChannelControl
	submissions []protocol.SubmissionEntry
	completions []protocol.CompletionEntry
	pins        []protocol.PinSlot
	arguments   []byte
	results     []byte
}

// partsOf casts a mapping. It is the only place where bytes of a channel become
// typed; the layout is checked here once more, so that a Layout made by hand
// cannot reach outside.
func partsOf(mem []byte, l *Layout) (parts, error) {
	if err := checkAligned("channel", mem); err != nil {
		return parts{}, err
	}
	if err := l.check(uint64(len(mem))); err != nil {
		return parts{}, err
	}
	return parts{
		control:     (*protocol.ChannelControl)(unsafe.Pointer(&mem[protocol.ChannelControlOffset])),
		submissions: unsafe.Slice((*protocol.SubmissionEntry)(unsafe.Pointer(&mem[l.SqOffset])), l.SqEntries),
		completions: unsafe.Slice((*protocol.CompletionEntry)(unsafe.Pointer(&mem[l.CqOffset])), l.CqEntries),
		pins:        unsafe.Slice((*protocol.PinSlot)(unsafe.Pointer(&mem[l.PinOffset])), l.PinCount),
		arguments:   mem[l.ArgumentOffset:][:l.ArgumentBytes:l.ArgumentBytes],
		results:     mem[l.ResultOffset:][:l.ResultBytes:l.ResultBytes],
	}, nil
}

// headerOf casts the first page of a channel.
func headerOf(mem []byte) (*protocol.ChannelHeader, error) {
	if uint64(len(mem)) < PageBytes {
		return nil, atLeast("SizeBytes", uint64(len(mem)), PageBytes)
	}
	if err := checkAligned("channel", mem); err != nil {
		return nil, err
	}
	return (*protocol.ChannelHeader)(unsafe.Pointer(&mem[0])), nil
}

// bellWords casts the two words of rule R3.
func bellWords(doorbell, directory []byte) (rings, sleeping *uint32, err error) {
	if uint64(len(doorbell)) < doorbellBytes {
		return nil, nil, fmt.Errorf("ring: the doorbell has %d bytes, expected at least %d", len(doorbell), doorbellBytes)
	}
	if uint64(len(directory)) < directoryBytes {
		return nil, nil, fmt.Errorf("ring: the directory has %d bytes, expected at least %d", len(directory), directoryBytes)
	}
	if err := checkAligned("doorbell", doorbell); err != nil {
		return nil, nil, err
	}
	if err := checkAligned("directory", directory); err != nil {
		return nil, nil, err
	}
	rings = &(*protocol.Doorbell)(unsafe.Pointer(&doorbell[0])).Rings
	sleeping = &(*protocol.DirectoryHeader)(unsafe.Pointer(&directory[0])).Sleeping
	return rings, sleeping, nil
}

// checkAligned refuses memory whose words would not be atomic. A mapping always passes.
func checkAligned(what string, mem []byte) error {
	if len(mem) == 0 {
		return fmt.Errorf("ring: the %s is empty", what)
	}
	if rest := uintptr(unsafe.Pointer(&mem[0])) % 8; rest != 0 {
		return fmt.Errorf("ring: the %s starts %d bytes off an 8-byte boundary; hand over the mapping itself", what, rest)
	}
	return nil
}
