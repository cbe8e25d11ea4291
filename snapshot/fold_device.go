package snapshot

import (
	"slices"

	"callboard/fault"
	"callboard/tensor"
)

// copyOnDevice is copy for a column whose rows lie on a device: the same copies, as one
// list, in the same order. Captures lie on that device too, brought there when they were
// accepted. The rows' ordinals lie on the host.
func (f *fold) copyOnDevice() error {
	if !f.publish {
		return nil
	}
	var list copyList
	if f.base != nil {
		f.listBase(&list)
	}
	var ordinals []uint64
	if f.ordinals != nil && f.ordinals != f.table {
		ordinals = f.copyOrdinals()
	}
	for i := f.first; i < len(f.captures); i++ {
		k, step := f.captures[i], &f.steps[i]
		if step.count == 0 {
			continue
		}
		rows, from := f.rowsOf(step), k.from
		if step.sorted {
			from = f.placesOf(step)
		}
		list.rows(f.block, k.block, f.rowBytes, rows, from)
		if ordinals != nil && !fault.On(fault.RowOrdinalsStale) {
			tensor.FillRows(ordinals, rows, k.ordinal)
		}
	}
	return list.run(f.device)
}

// listBase brings the block up to the base.
func (f *fold) listBase(list *copyList) {
	switch {
	case f.plan.compact && f.whole < 0:
		list.rows(f.block, f.base, f.rowBytes, nil, f.plan.live)
	case f.spare.block != nil:
		f.column.listChanged(list, f.last, f.behind, f.baseRows, f.rowBytes, f.block, f.base, f.again)
	default:
		size := f.baseRows * f.rowBytes
		list.add(f.block.place(0, size), f.base.place(0, size), size)
	}
}

// rows adds rows from number srcRows[i] of src to number dstRows[i] of dst; of either nil:
// number i.
func (l *copyList) rows(dst, src *Block, rowBytes uint64, dstRows, srcRows []uint32) {
	number := func(rows []uint32, i int) uint64 {
		if rows == nil {
			return uint64(i) * rowBytes
		}
		return uint64(rows[i]) * rowBytes
	}
	for i := range max(len(dstRows), len(srcRows)) {
		l.add(dst.place(number(dstRows, i), rowBytes), src.place(number(srcRows, i), rowBytes), rowBytes)
	}
}

// listChanged is catchUp for a block of a device: each row that changed once, in order, so
// that neighbours are one copy.
func (c *column) listChanged(list *copyList, now, behind, all, rowBytes uint64, dst, src *Block, again *rowList) {
	if fault.On(fault.DirtyRangeLost) {
		return
	}
	if c.changedRows(now, behind, all, again) == all {
		list.add(dst.place(0, all*rowBytes), src.place(0, all*rowBytes), all*rowBytes)
		return
	}
	var runs []span
	for d := range c.lacking(now, behind, again) {
		runs = append(runs, d.spans...)
		for _, row := range d.single {
			runs = append(runs, span{row, 1})
		}
	}
	slices.SortFunc(runs, func(a, b span) int { return int(a.first) - int(b.first) })
	end := uint64(0) // of what is listed
	for _, run := range runs {
		first, next := max(uint64(run.first), end), uint64(run.first)+uint64(run.count)
		if first >= next {
			continue
		}
		size := (next - first) * rowBytes
		list.add(dst.place(first*rowBytes, size), src.place(first*rowBytes, size), size)
		end = next
	}
}
