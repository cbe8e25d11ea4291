package broker

import (
	"fmt"

	"callboard/protocol"
	"callboard/snapshot"
)

// queryFilter runs OpQueryFilter. The query is there when the op completes; ops of the
// same client that name it wait behind it in the ring (behaviour 215).
func (b *Broker) queryFilter(c *client, e *protocol.SubmissionEntry) (out outcome, job *snapshot.Job, err error) {
	f, err := c.filter()
	if err == nil {
		err = c.roomForQuery()
	}
	if err != nil {
		return out, nil, err
	}
	handle := e.Handle
	switch {
	case handle == 0:
		c.lastQuery++
		handle = c.lastQuery
	case handle&protocol.ClientHandle == 0:
		return out, nil, protocol.Errorf(protocol.StatusInvalidArgument, "handle %#x of a new query: expected 0 or one with bit 63", handle)
	case c.queries[handle] != nil:
		return out, nil, protocol.Errorf(protocol.StatusInvalidArgument, "handle %#x of a new query is that of another query", handle)
	}
	done, job, err := b.store.Filter(f, func(q *snapshot.Query) {
		if c.attached {
			c.queries[handle] = q
		}
	})
	if err != nil {
		return out, nil, err
	}
	out.merge(done)
	out.Handle = handle
	return out, job, nil
}

// filter reads a filter out of the arguments.
func (c *client) filter() (*snapshot.Filter, error) {
	args, ok := decode[protocol.FilterArguments](c.arguments, 0)
	if !ok {
		return nil, c.short("FilterArguments", len(encode(&args)))
	}
	if args.PredicateCount > protocol.FilterPredicatesMax {
		return nil, protocol.Errorf(protocol.StatusInvalidArgument, "a filter of %d predicates: at most %d", args.PredicateCount, protocol.FilterPredicatesMax)
	}
	if args.Flags&^protocol.FilterSealed != 0 {
		return nil, protocol.Errorf(protocol.StatusInvalidArgument, "filter flags are %#x: expected %#x at most", args.Flags, uint32(protocol.FilterSealed))
	}
	f := &snapshot.Filter{Sealed: args.Flags&protocol.FilterSealed != 0, Scoped: args.AttributesOffsetBytes != 0}
	var err error
	if f.Attributes, err = c.listAt(args.AttributesOffsetBytes); err != nil {
		return nil, err
	}
	for i := range uint64(args.PredicateCount) {
		p, ok := decode[protocol.FilterPredicate](c.arguments, uint64(len(encode(&args)))+i*uint64(len(encode(&protocol.FilterPredicate{}))))
		if !ok {
			return nil, c.short(fmt.Sprintf("FilterPredicate %d", i), len(encode(&args))+(int(i)+1)*len(encode(&p)))
		}
		made := snapshot.Predicate{Operator: p.Relation}
		if made.Name, err = c.attributeName(p.NameOffsetBytes, p.NameBytes); err != nil {
			return nil, err
		}
		if made.Values, err = c.listAt(p.ValuesOffsetBytes); err != nil {
			return nil, err
		}
		f.Predicates = append(f.Predicates, made)
	}
	return f, nil
}

// listAt reads the StringList at an offset of the arguments; 0 is none.
func (c *client) listAt(offset uint32) ([]string, error) {
	if offset == 0 {
		return nil, nil
	}
	if uint64(offset) > uint64(len(c.arguments)) {
		return nil, c.short("a list of strings", int(offset))
	}
	return stringList(c.arguments[offset:])
}

// queryPage runs OpQueryPrims and OpQueryAttributes.
func (b *Broker) queryPage(c *client, e *protocol.SubmissionEntry, list func(*snapshot.Query) []uint64) (out outcome, err error) {
	q, err := c.query(e.Handle)
	if err != nil {
		return out, err
	}
	all := list(q)
	page := all[min(e.Value, uint64(len(all))):]
	room, err := c.resultRoom(e, min(8, 8*len(page)), "an id")
	if err != nil {
		return out, err
	}
	page = page[:min(len(page), len(room)/8, protocol.QueryPageMax)]
	for i, id := range page {
		putWord(room, i, id)
	}
	out.Handle, out.Count, out.resultBytes = e.Handle, uint64(len(all)), uint32(8*len(page))
	return out, nil
}
