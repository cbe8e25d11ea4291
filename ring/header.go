package ring

import (
	"bytes"
	"sync/atomic"

	"callboard/protocol"
)

// Identity is what a channel's header tells beside its layout.
type Identity struct {
	// Incarnation is the client's id (rule I1).
	Incarnation uint64
	// Generation is the stage's generation; a client compares it with the directory's.
	Generation uint64
	// BrokerIncarnation is the life of the broker that made the rings.
	BrokerIncarnation uint64
	// RingGeneration grows when rings start anew (rule B1).
	RingGeneration uint64
	// Features are the feature bits that both sides have.
	Features uint64
	// Flags are the granted Attach bits.
	Flags uint32
	// Name is the client's name for people; at most 64 bytes are kept.
	Name string
}

// WriteHeader describes a new channel in its first bytes. mem is the whole
// channel, TotalBytes of zeros. The version word is stored last (invariant P4),
// so whoever sees it sees the rest.
func (l *Layout) WriteHeader(mem []byte, id Identity) error {
	h, err := headerOf(mem)
	if err != nil {
		return err
	}
	if err := l.check(uint64(len(mem))); err != nil {
		return err
	}
	atomic.StoreUint32(&h.Header.Version, 0)
	h.Header.Magic = protocol.MagicChannel
	h.Header.HeaderBytes = uint32(headerBytes)
	h.Header.SizeBytes = l.TotalBytes
	h.Header.Generation = id.Generation
	h.Header.RegionID = id.Incarnation
	h.Header.OwnerIncarnation = id.Incarnation
	h.Header.Features = id.Features
	h.BrokerIncarnation = id.BrokerIncarnation
	h.RingGeneration = id.RingGeneration
	h.SqOffsetBytes = l.SqOffset
	h.CqOffsetBytes = l.CqOffset
	h.PinOffsetBytes = l.PinOffset
	h.ArgumentOffsetBytes = l.ArgumentOffset
	h.ResultOffsetBytes = l.ResultOffset
	h.ArgumentBytes = l.ArgumentBytes
	h.ResultBytes = l.ResultBytes
	h.SqEntries = l.SqEntries
	h.CqEntries = l.CqEntries
	h.PinCount = l.PinCount
	h.Flags = id.Flags
	h.Name = [len(h.Name)]byte{}
	copy(h.Name[:], id.Name)
	atomic.StoreUint32(&h.Header.Version, protocol.VersionWord)
	return nil
}

// Restart begins the rings anew after a broker restart (rule B1): the header says so,
// and all four indices are 0, so that nothing that was left in them is consumed. The
// client's bell, its sleepers and its pins stay. mem is the whole channel; neither side
// uses its rings meanwhile.
func (l *Layout) Restart(mem []byte, id Identity) error {
	if err := l.WriteHeader(mem, id); err != nil {
		return err
	}
	p, err := partsOf(mem, l)
	if err != nil {
		return err
	}
	for _, index := range []*uint64{&p.control.SqTail, &p.control.SqHead, &p.control.CqTail, &p.control.CqHead} {
		atomic.StoreUint64(index, 0)
	}
	return nil
}

// ReadHeader checks a channel that somebody else made. mem is the whole mapping;
// its size must be the one that the header states. Errors: *VersionError,
// *CorruptError, or one that says how mem itself is unfit.
func ReadHeader(mem []byte) (Layout, Identity, error) {
	shared, err := headerOf(mem)
	if err != nil {
		return Layout{}, Identity{}, err
	}
	// The version comes first: before it is there, nothing else may be believed.
	version := atomic.LoadUint32(&shared.Header.Version)
	h := *shared // one copy; the checks and the answer are about the same values
	if h.Header.Magic != protocol.MagicChannel {
		return Layout{}, Identity{}, exactly("Magic", h.Header.Magic, protocol.MagicChannel)
	}
	if version>>16 != protocol.ABIMajor {
		return Layout{}, Identity{}, &VersionError{Got: version, Want: protocol.VersionWord}
	}
	// A later minor version may have a longer header; it still ends before the control words.
	if size := uint64(h.Header.HeaderBytes); size < headerBytes {
		return Layout{}, Identity{}, atLeast("HeaderBytes", size, headerBytes)
	} else if size > protocol.ChannelControlOffset {
		return Layout{}, Identity{}, atMost("HeaderBytes", size, protocol.ChannelControlOffset)
	}
	l := Layout{
		SqOffset:       h.SqOffsetBytes,
		CqOffset:       h.CqOffsetBytes,
		PinOffset:      h.PinOffsetBytes,
		ArgumentOffset: h.ArgumentOffsetBytes,
		ResultOffset:   h.ResultOffsetBytes,
		TotalBytes:     h.Header.SizeBytes,
		SqEntries:      h.SqEntries,
		CqEntries:      h.CqEntries,
		PinCount:       h.PinCount,
		ArgumentBytes:  h.ArgumentBytes,
		ResultBytes:    h.ResultBytes,
	}
	if err := l.check(uint64(len(mem))); err != nil {
		return Layout{}, Identity{}, err
	}
	name, _, _ := bytes.Cut(h.Name[:], []byte{0})
	return l, Identity{
		Incarnation:       h.Header.RegionID,
		Generation:        h.Header.Generation,
		BrokerIncarnation: h.BrokerIncarnation,
		RingGeneration:    h.RingGeneration,
		Features:          h.Header.Features,
		Flags:             h.Flags,
		Name:              string(name),
	}, nil
}
