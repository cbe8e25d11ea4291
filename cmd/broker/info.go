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
	m := d.Memory
	known := m.Free + m.Live + m.Retained + m.Pinned + m.Recycled + m.Waiting + m.Directory
	section("memory",
		table.Row{"limit", formatSize(m.Limit)}, table.Row{"held in segments", formatSize(m.Held)},
		table.Row{"of these free", formatSize(m.Free)}, table.Row{"largest free block", formatSize(m.LargestFree)},
		table.Row{"newest versions", formatSize(m.Live)}, table.Row{"kept in older versions", formatSize(m.Retained)},
		table.Row{"kept by readers alone", formatSize(m.Pinned)}, table.Row{"kept for the next versions", formatSize(m.Recycled)},
		table.Row{"directory", formatSize(m.Directory)}, table.Row{"not sealed yet", formatSize(m.Waiting)}, table.Row{"staging of clients", formatSize(m.Held - min(m.Held, known))})

	section("gpu", gpuRows(&d.GPU)...)

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

// gpuRows tells of each device what is held there, or why nothing is.
func gpuRows(g *control.GPUDescription) []table.Row {
	rows := []table.Row{{"state", g.State}}
	for _, about := range [][2]string{{"driver", g.Driver}, {"reason", g.Reason}, {"the driver says", g.Text}, {"what helps", g.Advice}} {
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
			rows = append(rows, table.Row{name, strings.Join([]string{one.State, one.Reason, one.Text, one.Advice}, ": ")})
		}
		if one.State == control.GPUFailed {
			continue
		}
		limit := "no limit but the device's " + formatSize(one.Total)
		if one.Limit > 0 {
			limit = formatSize(one.Limit) + " of its " + formatSize(one.Total)
		}
		rows = append(rows, table.Row{name + " limit", limit},
			table.Row{name + " held", fmt.Sprintf("%s in %s, %s in use, %s only open in clients", formatSize(one.Held), plural(uint64(one.ArenaCount), "arena"), formatSize(one.Used), formatSize(one.Waiting))},
			table.Row{name + " events", fmt.Sprintf("%d free, %d with groups, %d given up", one.EventsFree, one.EventsLeased, one.EventsRetired)})
		for _, a := range one.Arenas {
			of := "versions"
			if a.Owner != 0 {
				of = fmt.Sprintf("staging of %016x", a.Owner)
			}
			if a.Retired {
				of += ", out of service"
			}
			rows = append(rows, table.Row{fmt.Sprintf("%s arena %d", name, a.Segment), fmt.Sprintf("%s, %s, open in %s", formatSize(a.Bytes), of, plural(uint64(a.ImporterCount), "client"))})
		}
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
