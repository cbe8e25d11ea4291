package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"callboard/control"
)

func newInfo() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Show the state of a stage: memory, clients, counters",
		Long: `Show the state of a stage: its broker, its memory, who is attached and what they hold, and counters.

A client that pins much keeps old versions in memory. What is kept for the next versions is given up when memory is short. adopt_refused counts buffers that had to be copied because
their producer kept a view of them.`,
		Example: "  callboard info\n  callboard info --json | jq .memory",
		Args:    noArguments,
	}
	stage, asJSON := stageFlag(cmd), jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		dir, info, err := runtimeInfo(*stage)
		if err != nil {
			return err
		}
		description, err := describeStage(cmd.Context(), *stage)
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), description)
		}
		printInfo(cmd.OutOrStdout(), description, dir, info.URL)
		return nil
	}
	return cmd
}

func printInfo(out io.Writer, d *control.Description, dir, url string) {
	section := func(title string, rows ...table.Row) {
		fmt.Fprintln(out, strings.ToUpper(title))
		t := newTable(out)
		t.SetIndexColumn(0)
		t.AppendRows(rows)
		t.Render()
		fmt.Fprintln(out)
	}
	section("stage",
		table.Row{"name", d.Stage}, table.Row{"host", d.Host}, table.Row{"runtime directory", dir}, table.Row{"NATS", url},
		table.Row{"broker version", d.BrokerVersion}, table.Row{"broker incarnation", fmt.Sprintf("%016x", d.Broker)},
		table.Row{"generation", d.Generation}, table.Row{"epoch", d.Epoch}, table.Row{"global write floor", d.Floor},
		table.Row{"attributes", len(d.Attributes)})
	section("memory", append(memoryRows(&d.Memory), table.Row{"directory", formatSize(d.Memory.Directory)})...)
	section("gpu", gpuRows(&d.GPU)...)
	for i := range d.GPU.Devices {
		if one := &d.GPU.Devices[i]; one.ID >= 0 {
			section(fmt.Sprintf("memory of device %d", one.ID), deviceRows(one)...)
		}
	}

	fmt.Fprintln(out, "CLIENTS")
	clients := newTable(out, "name", "language", "pid", "incarnation", "sessions", "pins", "pinned")
	for _, c := range d.Clients {
		clients.AppendRow(table.Row{c.Name, c.Language, c.PID, fmt.Sprintf("%016x", c.Incarnation), c.Sessions, c.Pins, formatSize(c.PinnedBytes)})
	}
	rightAligned(clients, 3, 5, 6, 7)
	if len(d.Clients) == 0 {
		fmt.Fprintln(out, "none")
	} else {
		clients.Render()
	}
	fmt.Fprintln(out)

	refused := uint64(0)
	for _, a := range d.Attributes {
		refused += a.AdoptRefused
	}
	if _, known := d.Counters["adopt_refused"]; !known && refused > 0 {
		d.Counters["adopt_refused"] = control.Number(refused)
	}
	section("counters", numberRows(d.Counters)...)
	section("limits", numberRows(d.Limits)...)
}

// memoryRows tells what memory is used for, of the host or of a device.
func memoryRows(m *control.MemoryDescription) []table.Row {
	known := m.Free + m.Live + m.Retained + m.Pinned + m.Mirrors + m.Open + m.Recycled + m.Waiting + m.Directory
	rows := []table.Row{
		{"limit", formatSize(m.Limit)}, {"held in segments", formatSize(m.Held)}, {"of these free", formatSize(m.Free)}, {"largest free block", formatSize(m.LargestFree)},
		{"newest versions", formatSize(m.Live)}, {"kept in older versions", formatSize(m.Retained)}, {"kept by readers alone", formatSize(m.Pinned)},
		{"kept for the next versions", formatSize(m.Recycled)}, {"not sealed yet", formatSize(m.Waiting)}, {"staging of clients", formatSize(m.Held - min(m.Held, known))},
	}
	if m.Mirrors > 0 {
		rows = append(rows, table.Row{"copies of what lies elsewhere", formatSize(m.Mirrors)})
	}
	return rows
}

// gpuRows tells which devices are served, or why none is.
func gpuRows(g *control.GPUDescription) []table.Row {
	rows := []table.Row{{"state", g.State}}
	for _, about := range [][2]string{{"driver", g.Driver}, {"reason", g.Reason}, {"it says", g.Text}, {"what helps", g.Advice}} {
		if about[1] != "" {
			rows = append(rows, table.Row{about[0], about[1]})
		}
	}
	for _, one := range g.Devices {
		name := fmt.Sprintf("device %d", one.ID)
		if one.ID < 0 {
			name = "another device"
		}
		rows = append(rows, table.Row{name, strings.TrimSpace(one.Name + " " + one.UUID)})
		if one.State != control.GPUServed {
			rows = append(rows, table.Row{name, fmt.Sprintf("%s: %s: %s", one.State, one.Reason, one.Text)}, table.Row{name, one.Advice})
		}
	}
	return rows
}

// deviceRows tells what is held on a device, and who has it open.
func deviceRows(one *control.DeviceDescription) []table.Row {
	rows := append(memoryRows(&one.Memory), table.Row{"out of service, open in clients", formatSize(one.Memory.Open)}, table.Row{"of the device", formatSize(one.Total)},
		table.Row{"events", fmt.Sprintf("%d free, %d with groups, %d given up", one.EventsFree, one.EventsLeased, one.EventsRetired)}, table.Row{"arenas", one.ArenaCount})
	for _, a := range one.Arenas {
		of := "versions"
		if a.Owner != 0 {
			of = fmt.Sprintf("staging of %016x", a.Owner)
		}
		if a.Retired {
			of += ", out of service"
		}
		rows = append(rows, table.Row{fmt.Sprintf("arena %d", a.Segment), fmt.Sprintf("%s, %s, open in %s", formatSize(a.Bytes), of, plural(uint64(a.ImporterCount), "client"))})
	}
	return rows
}

// numberRows shows bytes as sizes too: names say their unit last.
func numberRows(numbers map[string]control.Number) []table.Row {
	var rows []table.Row
	for _, name := range slices.Sorted(maps.Keys(numbers)) {
		value := fmt.Sprint(int64(numbers[name]))
		if strings.Contains(name, "bytes") && numbers[name] >= 1<<10 {
			value += " (" + formatSize(uint64(numbers[name])) + ")"
		}
		rows = append(rows, table.Row{name, value})
	}
	return rows
}
