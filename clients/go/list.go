package callboard

import (
	"context"
	"slices"
	"strings"
	"sync"

	"callboard/protocol"
)

// PathList is an immutable, ordered list of ids, with a number that no other list of the
// stage has. It counts references and is unknown after the last Release: then every
// call is NOT_FOUND (behaviour 255–258). It is memory of this process alone; one that is
// dropped is no leak. A nil PathList is no list: Retain and Release do nothing to it.
type PathList struct {
	client *client
	number uint64
	ids    []uint64

	mutex sync.Mutex
	refs  int
}

// NewList makes a list of ids, which are copied; the first reference is the caller's.
func (s *Stage) NewList(ids ...uint64) *PathList {
	return &PathList{client: s.client, number: s.client.lastList.Add(1), ids: slices.Clone(ids), refs: 1}
}

// known is nil while there are references, of which by are then added.
func (l *PathList) known(by int) error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.refs == 0 {
		return fail(protocol.StatusNotFound, "list %d is unknown: its last reference was released", l.number)
	}
	l.refs += by
	return nil
}

// Number tells lists of one stage apart; 0 of nil.
func (l *PathList) Number() uint64 {
	if l == nil {
		return 0
	}
	return l.number
}

// Retain adds a reference.
func (l *PathList) Retain() error {
	if l == nil {
		return nil
	}
	return l.known(1)
}

// Release gives a reference back.
func (l *PathList) Release() error {
	if l == nil {
		return nil
	}
	return l.known(-1)
}

// IDs are the list's ids, a copy.
func (l *PathList) IDs() ([]uint64, error) {
	if err := l.known(0); err != nil {
		return nil, err
	}
	return slices.Clone(l.ids), nil
}

// Slice makes a list of n ids from place first on; its first reference is the caller's.
func (l *PathList) Slice(first, n int) (*PathList, error) {
	if err := l.known(0); err != nil {
		return nil, err
	}
	if first < 0 || n < 0 || first > len(l.ids) || n > len(l.ids)-first {
		return nil, fail(protocol.StatusInvalidArgument, "%d ids from place %d on: list %d has %d", n, first, l.number, len(l.ids))
	}
	return (&Stage{l.client}).NewList(l.ids[first:][:n]...), nil
}

// QueryFromList makes a query of the paths whose ids a list has. The query holds a
// reference on the list until its Release.
func (s *Stage) QueryFromList(ctx context.Context, l *PathList) (*Query, error) {
	if l == nil || l.client != s.client {
		return nil, refused(fail(protocol.StatusInvalidHandle, "the list is nil or of another attachment"))
	}
	if err := l.known(1); err != nil {
		return nil, refused(err)
	}
	paths, err := s.Resolve(l.ids...)
	var q *Query
	if err == nil {
		q, err = s.QueryFromPathList(ctx, paths)
	}
	if err != nil {
		_ = l.Release()
		return nil, err
	}
	q.handle.list.Store(l)
	return q, nil
}

// Paths interns paths and gives their ids, which are the same for everyone on the stage.
// It waits for the broker.
func (s *Stage) Paths(ctx context.Context, paths ...string) ([]uint64, error) {
	return s.intern(ctx, protocol.StringPath, paths)
}

// PathFromTokens gives the id of the path whose components are tokens, the same as that
// of its text (behaviour 254); of none, that of the root. It waits for the broker.
// NOT_FOUND: an unknown token; INVALID_ARGUMENT: one that is no component.
func (s *Stage) PathFromTokens(ctx context.Context, tokens ...uint64) (uint64, error) {
	texts, err := s.Resolve(tokens...)
	if err != nil {
		return 0, err
	}
	for i, text := range texts {
		if strings.Contains(text, "/") {
			return 0, fail(protocol.StatusInvalidArgument, "token %d, %q, is no component of a path: it holds \"/\"", i, text)
		}
	}
	ids, err := s.Paths(ctx, "/"+strings.Join(texts, "/"))
	if err != nil {
		return 0, err
	}
	return ids[0], nil
}

// PathTokens gives the tokens of a path's components, none of the root (behaviour 253).
// It waits for the broker. NOT_FOUND: an unknown id.
func (s *Stage) PathTokens(ctx context.Context, path uint64) ([]uint64, error) {
	texts, err := s.Resolve(path)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(texts[0], "/") {
		return nil, fail(protocol.StatusInvalidArgument, "id %#x is that of the token %q, not of a path", path, texts[0])
	}
	if texts[0] == "/" {
		return nil, nil
	}
	return s.Tokens(ctx, strings.Split(texts[0][1:], "/")...)
}
