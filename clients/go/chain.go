package callboard

import (
	"slices"

	"callboard/protocol"
)

// chain is what some operations depend on: earlier ones of this client that are about the
// same attribute at an ordinal that is not above theirs, that make the query they use, or
// that are of the same map session.
type chain struct {
	names    map[string]uint64 // the highest ordinal
	all      uint64            // of any attribute
	most     []*request        // seals of all attributes but some
	queries  map[uint64]bool
	sessions map[uint64]bool
}

// last is the ordinal up to which an operation depends on others; one that is still to be
// chosen is above all.
func (r *request) last() uint64 {
	if r.flags&protocol.FlagNextOrdinal != 0 {
		return ^uint64(0)
	}
	return r.at
}

// makesQuery, and onSession, tell what the handle is.
func (r *request) makesQuery() bool {
	return r.handle != 0 && (r.opcode == protocol.OpQueryFilter || r.opcode == protocol.OpQueryPaths)
}

func (r *request) onSession() bool {
	return r.opcode == protocol.OpUnmapGroup || r.opcode == protocol.OpUnmapAttribute
}

// add takes a request into the chain.
func (c *chain) add(r *request) {
	switch {
	case r.onSession():
		c.sessions[r.handle] = true
	case r.onQuery() && r.handle != 0:
		c.queries[r.handle] = true
	}
	switch {
	case !r.changes():
	case r.opcode == protocol.OpSeal && r.value == protocol.ScopeExclude:
		c.most = append(c.most, r)
	case len(r.names) == 0: // a seal of everything, a delete of prims
		c.all = max(c.all, r.last())
	default:
		for _, name := range r.names {
			c.names[name] = max(c.names[name], r.last())
		}
	}
}

// dependsOn tells whether the chain depends on a request that came before all of it.
func (c *chain) dependsOn(r *request) bool {
	if r.makesQuery() && c.queries[r.handle] || r.onSession() && c.sessions[r.handle] {
		return true
	}
	if !r.changes() {
		return false
	}
	names := r.names
	if len(names) == 0 || r.opcode == protocol.OpSeal && r.value == protocol.ScopeExclude {
		// It is about every attribute, or all but its names.
		for name, last := range c.names {
			if r.at <= last && !slices.Contains(names, name) {
				return true
			}
		}
		return r.at <= c.all || slices.ContainsFunc(c.most, func(seal *request) bool { return r.at <= seal.last() })
	}
	return slices.ContainsFunc(names, func(name string) bool {
		last, ok := c.names[name]
		return ok && r.at <= last || r.at <= c.all ||
			slices.ContainsFunc(c.most, func(seal *request) bool { return r.at <= seal.last() && !slices.Contains(seal.names, name) })
	})
}

// lowestPending is the lowest operation that is not done in o's own chain: what it waits
// for (behaviour 209). What else is pending does not hold it up.
func (c *client) lowestPending(o *Op) uint64 {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	var before []*Op
	for id, other := range c.ops {
		if id < o.id {
			before = append(before, other)
		}
	}
	slices.SortFunc(before, func(a, b *Op) int { return int(int64(b.id) - int64(a.id)) })
	lowest := o.id
	own := chain{names: map[string]uint64{}, queries: map[uint64]bool{}, sessions: map[uint64]bool{}}
	own.add(&o.request)
	for _, other := range before {
		if own.dependsOn(&other.request) {
			own.add(&other.request)
			lowest = other.id
		}
	}
	return lowest
}
