package callboard

import (
	"slices"

	"callboard/snapshot"
	"callboard/tensor"
)

// pathColumn is what @path is: every prim's path id.
var pathColumn = &snapshot.Column{Name: snapshot.PathName, Schema: tensor.Schema{Kind: tensor.Fixed, DType: tensor.Uint64, Device: tensor.CPU}, RowBytes: 8}

// withoutPath takes @path out of the names of a read.
func withoutPath(names []string) (others []string, asked bool) {
	if !slices.Contains(names, snapshot.PathName) {
		return names, false
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == snapshot.PathName }), true
}

// addPaths adds the group of @path: a row for each of the query's prims, whether they
// exist or not (behaviour 271). Paths never change, so changes have none.
func (r *Read) addPaths(w *changes) {
	ids := r.query.Prims()
	if !w.paths || w.delta || len(ids) == 0 {
		return
	}
	rows := &snapshot.RowMap{Prims: ids, Rows: make([]uint32, len(ids)), Elements: make([]uint32, len(ids)), Dense: true}
	for i := range ids {
		rows.Rows[i], rows.Elements[i] = uint32(i), uint32(i)
	}
	version := snapshot.Version{Column: pathColumn, Data: bytesOfSlice(ids), Rows: uint64(len(ids))}
	r.parts = append(r.parts, part{name: snapshot.PathName, version: version, rows: rows, floor: r.floors.Global})
}
