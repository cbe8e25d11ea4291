package broker

import (
	"callboard/protocol"
	"callboard/snapshot"
)

// mirror runs OpMirror: it makes what is not there yet, and then tells where it lies (rule
// C5).
func (b *Broker) mirror(c *client, e *protocol.SubmissionEntry) (out outcome, job *snapshot.Job, err error) {
	var results protocol.MirrorResults
	room, err := c.resultRoom(e, len(encode(&results)), "where the mirror lies")
	if err != nil {
		return out, nil, err
	}
	if e.Flags != 0 {
		return out, nil, protocol.Errorf(protocol.StatusInvalidArgument, "flags are %#x: a mirror has none", e.Flags)
	}
	if e.Handle > uint64(protocol.NoColumn) || e.Value > uint64(protocol.NoColumn) {
		return out, nil, protocol.Errorf(protocol.StatusNotFound, "there is no column %d, or no device number %d", e.Handle, e.Value)
	}
	if results, job, err = b.store.Mirror(uint32(e.Handle), e.Ordinal, uint32(e.Value)); err != nil {
		return out, nil, err
	}
	if job != nil {
		out.again = true
		return out, job, nil
	}
	out.resultBytes = uint32(copy(room, encode(&results)))
	return out, nil, nil
}
