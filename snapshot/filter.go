package snapshot

import (
	"callboard/protocol"
	"callboard/tensor"
)

// PathName is the reserved attribute that holds every prim's path id (behaviour 271).
const PathName = "@path"

// Filter says which prims a query is of: those that satisfy every predicate; without
// one, every prim, that is, whatever carries an attribute.
type Filter struct {
	Predicates []Predicate
	// Scoped limits the attributes that are reported to those of Attributes that the
	// prims carry; else they are all that the prims carry (behaviour 234, 235).
	Scoped     bool
	Attributes []string
	// Sealed looks at sealed state alone; else at what was accepted since as well, as
	// far as its copies are done (behaviour 233).
	Sealed bool
}

// Predicate is one condition.
type Predicate struct {
	Operator uint32 // one of protocol's Filter operators
	Name     string // of an attribute, or PathName
	Values   []string
}

var operatorNames = [...]string{protocol.FilterHas: "HAS", protocol.FilterIn: "IN", protocol.FilterPrefix: "PREFIX", protocol.FilterContains: "CONTAINS",
	protocol.FilterLess: "LT", protocol.FilterLessEqual: "LE", protocol.FilterGreater: "GT", protocol.FilterGreaterEqual: "GE"}

// CheckFilter refuses what no stage answers: schemas gives those that a name has. It is
// what arguments and the directory decide (rule R6). NOT_SUPPORTED: an operator that the
// attribute has none of (behaviour 242); of a name with several schemas one must do, and
// prims that carry another never satisfy the predicate.
func CheckFilter(f *Filter, schemas func(name string) ([]tensor.Schema, error)) error {
	if n := len(f.Predicates); n > protocol.FilterPredicatesMax {
		return protocol.Errorf(protocol.StatusInvalidArgument, "a filter of %d predicates: at most %d", n, protocol.FilterPredicatesMax)
	}
	for _, name := range f.Attributes {
		if err := CheckName(name); err != nil {
			return err
		}
	}
	for i := range f.Predicates {
		p := &f.Predicates[i]
		if err := p.check(); err != nil {
			return err
		}
		if p.Name == PathName || p.Operator == protocol.FilterHas {
			continue
		}
		found, err := schemas(p.Name)
		if err != nil {
			return err
		}
		var refusal error
		for k := range found {
			if _, err := p.test(&found[k], nil); err == nil {
				refusal = nil
				break
			} else if refusal == nil {
				refusal = err
			}
		}
		if refusal != nil {
			return refusal
		}
	}
	return nil
}

// check decides what the predicate alone decides.
func (p *Predicate) check() error {
	if p.Operator == 0 || int(p.Operator) >= len(operatorNames) {
		return protocol.Errorf(protocol.StatusInvalidArgument, "filter operator is %d: expected %d (HAS) to %d (GE)", p.Operator, protocol.FilterHas, len(operatorNames)-1)
	}
	operator, path := operatorNames[p.Operator], p.Name == PathName
	if !path {
		if err := CheckName(p.Name); err != nil {
			return err
		}
	}
	onPaths := p.Operator == protocol.FilterIn || p.Operator == protocol.FilterPrefix
	if path != onPaths && (path || p.Operator == protocol.FilterPrefix) {
		return protocol.Errorf(protocol.StatusNotSupported, "%s on %q is not supported: paths have IN and PREFIX, attributes HAS, IN, CONTAINS, LT, LE, GT and GE", operator, p.Name)
	}
	least, most := 1, 1
	switch p.Operator {
	case protocol.FilterHas:
		least, most = 0, 0
	case protocol.FilterIn, protocol.FilterContains:
		most = protocol.FilterValuesMax
	}
	if n := len(p.Values); n < least || n > most {
		return protocol.Errorf(protocol.StatusInvalidArgument, "%s on %q has %d values: expected %d to %d", operator, p.Name, n, least, most)
	}
	if path && p.Operator == protocol.FilterIn {
		for _, value := range p.Values {
			if err := CheckPath(value); err != nil {
				return err
			}
		}
	}
	return nil
}

// filterRowBytes is how many bytes of copy a row that is looked at counts for (rule L1):
// 16384 rows are looked at in the loop itself.
const filterRowBytes = 4

// Filter makes a query of the prims that satisfy f as the stage is now; it does not
// change afterwards (behaviour 245). Its prims are in the order in which their paths
// came up first. made gets it in the loop, before the operation ends. Looking at more
// than a few rows is a Job: it works on what never changes, so that nothing waits for it.
func (s *Store) Filter(f *Filter, made func(*Query)) (Outcome, *Job, error) {
	l, err := s.survey(f)
	if err != nil {
		return Outcome{}, nil, err
	}
	finish := func() (Outcome, error) {
		l.release()
		made(l.found)
		return Outcome{Epoch: l.epoch, Count: l.found.Size(), Value: uint64(len(l.found.attributes))}, nil
	}
	if l.cost*filterRowBytes <= s.config.CopyInlineBytes {
		ran := false
		defer func() { // memory that a producer has cut off: nothing stays held
			if !ran {
				l.release()
			}
		}()
		l.run()
		ran = true
		out, err := finish()
		return out, nil, err
	}
	return Outcome{}, &Job{Run: l.run, Finish: finish, Abort: l.release}, nil
}
