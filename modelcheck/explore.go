package modelcheck

import (
	"fmt"
	"strings"
)

// Model is one protocol in small bounds. Next and Rest must depend on nothing but the state they are given.
type Model[S comparable] interface {
	// Start returns the one state everything begins in.
	Start() S
	// Next adds every step enabled in s. It must not change s.
	Next(s *S, to *Steps[S])
	// Rest is asked about a state without an enabled step: empty when the protocol may end here, else what is wrong
	// with stopping here.
	Rest(s *S) string
}

// Steps collects the steps enabled in one state. The explorer owns it and uses it again for the next state.
type Steps[S comparable] struct {
	list []step[S]
}

// step holds its words unformatted: a search takes millions of steps and prints at most a few dozen.
type step[S comparable] struct {
	next   S
	who    string
	what   sentence
	broken sentence
}

type sentence struct {
	format string
	args   [5]uint8
	count  uint8
}

func (s *sentence) set(format string, args []uint8) {
	if len(args) > len(s.args) {
		panic(fmt.Sprintf("modelcheck: %d numbers for %q, at most %d", len(args), format, len(s.args)))
	}
	s.format = format
	s.count = uint8(copy(s.args[:], args))
}

func (s sentence) String() string {
	args := make([]any, s.count)
	for i := range args {
		args[i] = s.args[i]
	}
	return fmt.Sprintf(s.format, args...)
}

// Add says that the process who may take a step to next; format and args (at most 5) say in words what it does.
func (t *Steps[S]) Add(next S, who, format string, args ...uint8) {
	t.list = append(t.list, step[S]{next: next, who: who})
	t.list[len(t.list)-1].what.set(format, args)
}

// Fail marks the step added last as a fault, in words. A search ends at the first fault.
func (t *Steps[S]) Fail(format string, args ...uint8) {
	t.list[len(t.list)-1].broken.set(format, args)
}

// Outcome is what a search found.
type Outcome struct {
	States   int      // distinct states reached, the start included
	Depth    int      // steps of the longest shortest path; with a fault, steps to the fault
	Complete bool     // every reachable state was visited (false when the limit was reached, or at a fault)
	Fault    string   // empty when none was found
	Trace    []string // the steps from the start to the fault, in words
}

// Holds reports whether every reachable state was visited and none is at fault.
func (o Outcome) Holds() bool { return o.Complete && o.Fault == "" }

// Verdict is the outcome in a word or three: "holds", "caught", or "cut off" where the limit ended the search.
func (o Outcome) Verdict() string {
	switch {
	case o.Fault != "":
		return "caught"
	case o.Complete:
		return "holds"
	default:
		return "cut off"
	}
}

// String prints the steps to the fault, one a line and numbered, and then the fault.
func (o Outcome) String() string {
	if o.Fault == "" {
		return fmt.Sprintf("%s: %d states, depth %d", o.Verdict(), o.States, o.Depth)
	}
	var b strings.Builder
	for i, line := range o.Trace {
		fmt.Fprintf(&b, "%3d. %s\n", i+1, line)
	}
	fmt.Fprintf(&b, "   → %s", o.Fault)
	return b.String()
}

// Explore visits every state that m can reach, at most limit states, and stops at the first fault.
func Explore[S comparable](m Model[S], limit int) Outcome {
	seen := newStore[S]()
	seen.add(m.Start(), 0)
	var out Outcome
	var steps Steps[S]
	levelEnd := 1 // states found before the current depth was complete
	for at := 0; at < seen.count; at++ {
		if at == levelEnd {
			levelEnd = seen.count
			out.Depth++
		}
		steps.list = steps.list[:0]
		m.Next(seen.state(at), &steps)
		if len(steps.list) == 0 {
			if why := m.Rest(seen.state(at)); why != "" {
				out.Fault = why
				out.Trace = trace(m, seen, at)
				break
			}
		}
		for i := range steps.list {
			s := &steps.list[i]
			if s.broken.format != "" {
				out.Fault = s.broken.String()
				out.Trace = append(trace(m, seen, at), s.who+" "+s.what.String())
				break
			}
			seen.add(s.next, at)
		}
		if out.Fault != "" || seen.count > limit {
			break
		}
		out.Complete = at == seen.count-1
	}
	out.States = seen.count
	if out.Fault != "" {
		out.Complete = false
		out.Depth = len(out.Trace)
	}
	return out
}

// trace finds the words of the path to state number at: each state remembers only where it was found from, so the
// step is the one of the parent's that leads here.
func trace[S comparable](m Model[S], seen *store[S], at int) []string {
	if at == 0 {
		return nil
	}
	from := seen.parent(at)
	var steps Steps[S]
	m.Next(seen.state(from), &steps)
	for _, s := range steps.list {
		if s.next == *seen.state(at) {
			return append(trace(m, seen, from), s.who+" "+s.what.String())
		}
	}
	panic(fmt.Sprintf("modelcheck: state %d was found from state %d, but no step leads there now: Next is not a function of the state", at, from))
}
