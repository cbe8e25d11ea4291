package cudaipc

// importers says which clients may have which exported things open, by index. A client
// counts from the moment before it gets the handle.
type importers map[uint32]map[uint64]struct{}

func (m importers) opened(index uint32, client uint64) {
	if m[index] == nil {
		m[index] = map[uint64]struct{}{}
	}
	m[index][client] = struct{}{}
}

func (m importers) closed(index uint32, client uint64) {
	delete(m[index], client)
	if len(m[index]) == 0 {
		delete(m, index)
	}
}

func (m importers) gone(client uint64) {
	for index := range m {
		m.closed(index, client)
	}
}

func (m importers) have(index uint32) bool { return len(m[index]) > 0 }
