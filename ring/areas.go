package ring

// Areas are a channel's argument and result area; Client and Server have them
// embedded. What is returned lies in shared memory and is valid while the
// channel is mapped.
type Areas struct {
	argumentArea []byte
	resultArea   []byte
}

// Arguments is the room at offset of size bytes in the argument area. The client
// fills it before it submits. The broker must not use it for a decision, since
// the client may change it at any time: it copies with CopyArguments, or copies
// payload bytes from here to their place, once.
// Error: *CorruptError when the room is not inside the area or not 8-byte aligned.
func (a *Areas) Arguments(offset, size uint32) ([]byte, error) {
	if err := checkRoom("ArgumentOffsetBytes", "ArgumentBytes", offset, size, uint32(len(a.argumentArea))); err != nil {
		return nil, err
	}
	return a.argumentArea[offset:][:size:size], nil
}

// CopyArguments appends the room's bytes to dst[:0] and returns them: the copy
// that checks and decisions are made on. It allocates only when dst is too small.
func (a *Areas) CopyArguments(dst []byte, offset, size uint32) ([]byte, error) {
	room, err := a.Arguments(offset, size)
	if err != nil {
		return nil, err
	}
	return append(dst[:0], room...), nil
}

// Result is the room at offset of size bytes in the result area (rule R2). The
// broker fills it before it completes the op; it is the client's until the op is
// released. Error: as for Arguments.
func (a *Areas) Result(offset, size uint32) ([]byte, error) {
	if err := checkRoom("ResultOffsetBytes", "ResultBytes", offset, size, uint32(len(a.resultArea))); err != nil {
		return nil, err
	}
	return a.resultArea[offset:][:size:size], nil
}
