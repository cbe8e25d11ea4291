package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	callboard "callboard/clients/go"
	"callboard/protocol"
	"callboard/shm"
	"callboard/tensor"
)

func newRead() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "read NAME",
		Short: "Show the newest value of an attribute",
		Long: `Show the newest sealed value of an attribute, one row for each prim, all of one epoch.

It is read from shared memory, as any client reads; NATS is not needed. A long row is cut, --values says where.
With --json all rows and values are there, unless --rows says otherwise; what JSON has no number for (NaN) is text.

--npy FILE writes one NumPy array instead: the prims, then the shape of a row, then the lanes of the element type if it has
several. --npz FILE writes an archive with that array as "values", the paths as "prims", and "ordinal", "floor" and "epoch"; of an
attribute with several schemas "values_0", "prims_0" and so on. Of kind array the values stand one after the other, and row i is
values[offsets[i]:offsets[i+1]]. The file appears whole or not at all.`,
		Example: `  callboard read body/position
  callboard read body/position --prim /World/humanoid/torso --prim /World/humanoid/pelvis
  callboard read camera/rgb --values 6
  callboard read joint/position --json | jq '.[0].rows[0].values'
  callboard read camera/rgb --npy frame.npy && python -c 'import numpy; print(numpy.load("frame.npy").shape)'`,
		Args: func(cmd *cobra.Command, arguments []string) error {
			if len(arguments) != 1 {
				return usagef("got %d arguments: expected the name of an attribute; `callboard ls` lists them", len(arguments))
			}
			return nil
		},
	}
	stage, asJSON := stageFlag(cmd), jsonFlag(cmd)
	prims := cmd.Flags().StringArray("prim", nil, "only the row of this prim, like /World/R0; may be given again")
	rows := cmd.Flags().Int("rows", 0, "most rows shown, 0 for all (default 40, with --json all)")
	values := cmd.Flags().Int("values", 12, "most values shown of a row")
	npy := cmd.Flags().String("npy", "", "write one NumPy array to this file instead")
	npz := cmd.Flags().String("npz", "", "write NumPy arrays with the prims to this file instead")
	cmd.ValidArgsFunction = completeAttributes(stage)
	cmd.RunE = func(cmd *cobra.Command, arguments []string) error {
		if *rows < 0 || *values < 1 {
			return usagef("--rows is %d and --values is %d: expected no less than 0 and 1", *rows, *values)
		}
		if *npy != "" || *npz != "" {
			for _, other := range []string{"json", "rows", "values"} {
				if cmd.Flags().Changed(other) || *npy != "" && *npz != "" {
					return usagef("--npy and --npz write a whole value to one file: leave out the other and --json, --rows, --values")
				}
			}
		}
		if !cmd.Flags().Changed("rows") && !*asJSON {
			*rows = 40
		}
		shown, err := readValue(cmd.Context(), *stage, arguments[0], *prims)
		if err != nil {
			return readError(err)
		}
		defer shown.release()
		out := cmd.OutOrStdout()
		switch {
		case *npy != "":
			return readError(shown.npy(*npy))
		case *npz != "":
			return readError(shown.npz(*npz))
		case *asJSON:
			return readError(shown.json(out, *rows))
		}
		return readError(shown.text(out, *rows, *values))
	}
	return cmd
}

// value is what was read: a group for each schema of the name, with the paths of its prims.
type value struct {
	stage  *callboard.Stage
	groups []*callboard.Group
}

func (v *value) release() {
	for _, group := range v.groups {
		group.Release()
	}
	_ = v.stage.Close()
}

// readValue reads an attribute of the given prims, or of all that carry it.
func readValue(ctx context.Context, stageName, name string, paths []string) (v *value, err error) {
	if stageName != "" {
		if err := shm.CheckStage(stageName); err != nil {
			return nil, &exitError{exitUsage, err}
		}
	}
	if err := someBroker(cmp.Or(stageName, defaultStage)); err != nil {
		return nil, err
	}
	stage, err := callboard.Dial(ctx, callboard.Options{Stage: stageName, Name: "callboard read", ReadOnly: true})
	if err != nil {
		// Whatever it is that NOT_FOUND could not find here, it is the broker.
		if errors.Is(err, callboard.ErrNotFound) {
			return nil, exitf(exitNoBroker, "%w", err)
		}
		return nil, err
	}
	v = &value{stage: stage}
	defer func() {
		if err != nil {
			v.release()
		}
	}()
	snapshot, err := stage.Snapshot(ctx)
	if err != nil {
		return v, err
	}
	defer snapshot.Release()
	// Asked in any case: a name that nobody knows is another error than a prim that does not carry it.
	ids, err := snapshot.PrimsOf(name)
	if err != nil {
		return v, err
	}
	if len(paths) == 0 {
		if paths, err = stage.Resolve(ids...); err != nil {
			return v, err
		}
	}
	if len(ids) == 0 {
		return v, exitf(exitNotFound, "attribute %q has no sealed value yet", name)
	}
	query, err := stage.QueryFromPathList(ctx, paths)
	if err != nil {
		return v, err
	}
	defer query.Release()
	read, err := snapshot.Read(ctx, query, name)
	if err != nil {
		return v, err
	}
	defer read.Release()
	carried := map[uint64]bool{}
	for group, err := range read.Groups() {
		if err != nil {
			return v, err
		}
		// A group on a device is copied by the broker, once for all who look: this process needs no driver.
		host, err := group.On(ctx, callboard.CPU)
		group.Release()
		if err != nil {
			return v, err
		}
		group = host
		v.groups = append(v.groups, group)
		for _, id := range group.Prims() {
			carried[id] = true
		}
	}
	for i, id := range query.Prims() {
		if !carried[id] {
			return v, exitf(exitNotFound, "prim %s has no sealed value of attribute %q", paths[i], name)
		}
	}
	return v, nil
}

// someBroker gives the error of all other commands where no broker is to be found.
func someBroker(stage string) error {
	_, err := shm.FindRuntime(stage)
	return err
}

// readError gives errors of the client their exit codes.
func readError(err error) error {
	var own *exitError
	var failed *callboard.Error
	if err == nil || errors.As(err, &own) || !errors.As(err, &failed) || errors.Is(err, shm.ErrNoBroker) {
		return err
	}
	switch failed.Status {
	case protocol.StatusNotFound:
		return exitf(exitNotFound, "%w; `callboard ls` lists the attributes", err)
	case protocol.StatusInvalidArgument:
		return &exitError{exitUsage, err}
	case protocol.StatusTimeout:
		return &exitError{exitTimeout, err}
	case protocol.StatusSessionEnded:
		return &exitError{exitNoBroker, err}
	}
	return err
}

// rowsOf calls each with the first rows of a group, at most limit unless that is 0, and tells how many there are.
func (v *value) rowsOf(group *callboard.Group, limit int, each func(path string, raw []byte)) (total int, err error) {
	ids := group.Prims()
	total = len(ids)
	if limit > 0 {
		ids = ids[:min(limit, len(ids))]
	}
	paths, err := v.stage.Resolve(ids...)
	if err != nil {
		return total, err
	}
	for i, path := range paths {
		raw, err := rowBytes(group, i)
		if err != nil {
			return total, err
		}
		each(path, raw)
	}
	return total, nil
}

// rowBytes is the row of a group's i-th prim.
func rowBytes(group *callboard.Group, i int) ([]byte, error) {
	if group.IsArray() {
		t, err := group.Tensor(i)
		return t.Data, err
	}
	raw, err := group.Bytes()
	width := len(raw) / max(1, group.Rows())
	return raw[group.Row(i)*width:][:width], err
}

// kindOf is what a reader must know of a group beside its element type.
func kindOf(group *callboard.Group) string {
	if group.IsArray() {
		return "array"
	}
	return "fixed"
}

// rowShape is a group's shape without its rows and lanes; that of an array is each row's own.
func rowShape(group *callboard.Group) []uint64 {
	shape := []uint64{}
	if group.IsArray() {
		return shape
	}
	extents := group.Shape()[1:]
	if group.DType().Lanes > 1 {
		extents = extents[:len(extents)-1]
	}
	for _, extent := range extents {
		shape = append(shape, uint64(extent))
	}
	return shape
}

func (v *value) text(out io.Writer, rows, values int) error {
	for _, group := range v.groups {
		dtype := group.DType()
		row := dtype.String()
		if group.IsArray() {
			row += " array"
		}
		if shape := rowShape(group); len(shape) > 0 {
			row += " " + formatShape(shape)
		}
		fmt.Fprintf(out, "%s  %s, %s, ordinal %d, floor %d, epoch %d", group.Attribute(), row, plural(uint64(len(group.Prims())), "prim"), group.Ordinal(), group.Floor(), group.Epoch())
		if semantic := group.Semantic(); semantic != 0 {
			fmt.Fprintf(out, ", semantic %s", semantic)
		}
		fmt.Fprintln(out)
		t := newTable(out, "prim", "value")
		shown := 0
		total, err := v.rowsOf(group, rows, func(path string, raw []byte) {
			t.AppendRow(table.Row{path, formatted(group, raw, values)})
			shown++
		})
		if err != nil {
			return err
		}
		t.Render()
		if shown < total {
			fmt.Fprintf(out, "… and %s more; --rows 0 shows all\n", plural(uint64(total-shown), "row"))
		}
	}
	return nil
}

// formatted is a row for people: text where the attribute is text, else numbers.
func formatted(group *callboard.Group, raw []byte, values int) string {
	if group.IsArray() && group.Semantic() == tensor.SemanticString {
		return strconv.Quote(string(raw))
	}
	return formatRow(group.DType(), raw, values)
}

// readGroup is the JSON of a group; 64-bit numbers of the stage are text, as in all its documents, values are numbers.
type readGroup struct {
	Attribute string    `json:"attribute"`
	Kind      string    `json:"kind"`
	DType     string    `json:"dtype"`
	RowShape  []uint64  `json:"row_shape"`
	Semantic  string    `json:"semantic"`
	Ordinal   uint64    `json:"ordinal,string"`
	Floor     uint64    `json:"floor,string"`
	Epoch     uint64    `json:"epoch,string"`
	Prims     int       `json:"prims"`
	Rows      []readRow `json:"rows"`
}

type readRow struct {
	Prim   string `json:"prim"`
	Values []any  `json:"values"`
}

func (v *value) json(out io.Writer, rows int) error {
	groups := []readGroup{}
	for _, group := range v.groups {
		dtype := group.DType()
		g := readGroup{Attribute: group.Attribute(), Kind: kindOf(group), DType: dtype.String(), RowShape: rowShape(group), Semantic: group.Semantic().String(),
			Ordinal: group.Ordinal(), Floor: group.Floor(), Epoch: group.Epoch(), Rows: []readRow{}}
		var err error
		g.Prims, err = v.rowsOf(group, rows, func(path string, raw []byte) {
			row := readRow{Prim: path, Values: []any{}}
			for _, value := range scalars(dtype, raw, -1) {
				row.Values = append(row.Values, jsonScalar(value))
			}
			g.Rows = append(g.Rows, row)
		})
		if err != nil {
			return err
		}
		groups = append(groups, g)
	}
	return printJSON(out, groups)
}
