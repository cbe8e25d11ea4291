package snapshot

import (
	"slices"

	"callboard/protocol"
	"callboard/shm"
	"callboard/tensor"
)

// mirror is the rows of a version in other memory than they lie in (rule C5). It belongs to
// the version and goes with it. On the host it lies in segments of a sort that no recovery
// uses again (protocol.SegmentShared), since the directory does not tell of it and whoever
// looks at it may go on after a restart.
type mirror struct {
	number uint32 // DeviceNumber
	block  *Block // nil while it is made
}

// mirror is the version's on a device number, finished or not, nil if there is none.
func (v *version) mirror(number uint32) *mirror {
	for i := range v.mirrors {
		if v.mirrors[i].number == number {
			return &v.mirrors[i]
		}
	}
	return nil
}

func (s *Store) dropMirrors(v *version) {
	for _, m := range v.mirrors {
		s.memory.Drop(m.block)
	}
	v.mirrors = nil
}

// Mirror gives the rows of a version in other memory (rule C5): of the version of a column
// that was born at an epoch, on a device, or with number 0 on the host. The asker has a pin
// that covers it. ErrRetry: the same mirror is being made, or memory is. With a Job, the
// mirror is there when that has ended: ask again then. It is there as long as the version.
//
// Errors: OUT_OF_RANGE where the version is not there any more, INVALID_ARGUMENT for a
// column or a device that does not exist, NOT_SUPPORTED for arrays, OUT_OF_MEMORY.
func (s *Store) Mirror(column uint32, birth uint64, number uint32) (protocol.MirrorResults, *Job, error) {
	c, v, err := s.mirrored(column, birth)
	if err != nil {
		return protocol.MirrorResults{}, nil, err
	}
	var d *Device
	if number != 0 {
		if d, err = s.device("the mirror's device", tensor.DeviceCUDA, number-1); err != nil {
			return protocol.MirrorResults{}, nil, err
		}
	}
	size := v.rows * c.rowBytes
	if v.block.device() == d || size == 0 {
		return s.mirrorResults(v.block, size), nil, nil
	}
	if m := v.mirror(number); m != nil {
		if m.block == nil {
			return protocol.MirrorResults{}, nil, ErrRetry
		}
		return s.mirrorResults(m.block, size), nil, nil
	}
	from := v.block.Hold() // to lease memory may reclaim the version
	block, err := s.mirrorBlock(d, size)
	if err == nil {
		if _, v, err = s.mirrored(column, birth); err != nil {
			s.memory.Drop(block)
		}
	}
	if err != nil {
		s.memory.Drop(from)
		return protocol.MirrorResults{}, nil, err
	}
	v.mirrors = append(v.mirrors, mirror{number: number})
	return protocol.MirrorResults{}, s.makeMirror(column, birth, number, from, block, size), nil
}

// mirrored is the version that is asked for.
func (s *Store) mirrored(index uint32, birth uint64) (*column, *version, error) {
	if index == protocol.FloorColumn || index >= uint32(len(s.columns)) {
		return nil, nil, protocol.Errorf(protocol.StatusInvalidArgument, "column %d is no attribute's: there are %d, from 1 on", index, len(s.columns)-1)
	}
	c := s.columns[index]
	if c.ragged != nil {
		return nil, nil, protocol.Errorf(protocol.StatusNotSupported, "attribute %q is of kind array: its rows are served from host memory only; read them there", c.name)
	}
	i := slices.IndexFunc(c.versions, func(v *version) bool { return v.birth == birth && !v.gone() })
	if i < 0 {
		return nil, nil, protocol.Errorf(protocol.StatusOutOfRange, "attribute %q: its version of epoch %d is not there any more; read it anew, and keep the pin while the rows are asked for", c.name, birth)
	}
	return c, c.versions[i], nil
}

// mirrorBlock leases memory for a mirror.
func (s *Store) mirrorBlock(d *Device, size uint64) (*Block, error) {
	if d != nil {
		return s.dataOn(d, size)
	}
	if s.mirrors == nil {
		s.mirrors = s.memory.NewArena(protocol.SegmentShared, 0, "copies of versions of devices", false)
		s.mirrors.fresh = true
	}
	return s.memory.Alloc(s.mirrors, size)
}

func (s *Store) mirrorResults(b *Block, size uint64) protocol.MirrorResults {
	r := protocol.MirrorResults{Block: b.Ref, DeviceNumber: b.device().number(), ArenaGeneration: b.life()}
	r.Block.LengthBytes = size
	return r
}

// makeMirror copies a version, which may be gone when that has ended.
func (s *Store) makeMirror(column uint32, birth uint64, number uint32, from, to *Block, size uint64) *Job {
	var failed error
	end := func(keep bool) error {
		_, v, err := s.mirrored(column, birth)
		if err == nil {
			if m := v.mirror(number); keep {
				m.block = to.Hold()
				count(&s.columns[column].entry.CopiedBytes, size)
				s.counters.CopiedBytes += size
			} else {
				v.mirrors = slices.DeleteFunc(v.mirrors, func(m mirror) bool { return m.number == number })
			}
		}
		s.memory.Drop(from)
		s.memory.Drop(to)
		return err
	}
	return &Job{
		Bytes:  size,
		Device: true,
		Run: func() {
			list := copyList{}
			list.add(to.place(0, size), from.place(0, size), size)
			if fault := shm.Guard(func() { failed = list.run(deviceOf(to, from)) }); fault != nil { // not the asker's: the producer has cut it off
				failed = protocol.Errorf(protocol.StatusOutOfRange, "the rows of epoch %d lie in memory of their producer, which cannot be read any more: %v", birth, fault)
			}
		},
		Finish: func() (Outcome, error) {
			err := end(failed == nil)
			if failed != nil {
				err = named(s.columns[column].name, failed)
			}
			return Outcome{Epoch: s.epoch}, err
		},
		Abort: func() { _ = end(false) },
	}
}
