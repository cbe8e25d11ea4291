package main

import (
	"cmp"
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"callboard/shm"
)

// States of a finding.
const (
	stateOK   = "ok"
	stateWarn = "warn" // works, or works partly
	stateFail = "fail" // does not work
)

// finding is one thing that doctor looked at.
type finding struct {
	Check string `json:"check"`
	State string `json:"state"`
	Found string `json:"found"`
	Do    string `json:"do,omitempty"` // what helps
}

// diagnosis collects findings.
type diagnosis struct {
	stage    string
	shmDir   string
	findings []finding
}

func (d *diagnosis) ok(check, format string, v ...any) {
	d.findings = append(d.findings, finding{Check: check, State: stateOK, Found: fmt.Sprintf(format, v...)})
}

func (d *diagnosis) trouble(state, check, do, format string, v ...any) {
	d.findings = append(d.findings, finding{Check: check, State: state, Found: fmt.Sprintf(format, v...), Do: do})
}

func newDoctor() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what goes wrong on machines like this one",
		Long: `Look at everything that Callboard needs of this machine and that goes wrong in practice: the size of shared memory, directories and
who owns them, what dead brokers left, whether a broker answers and NATS too, limits, the kernel, containers, GPUs.

It changes nothing, and needs no broker. Each line says what was found and, where something is wrong, what helps. "warn" is
what works with a drawback, "fail" what does not work: then the exit code is 1.`,
		Example: `  callboard doctor
  callboard doctor --stage robots --json | jq '.[] | select(.state != "ok")'`,
		Args: noArguments,
	}
	stage, asJSON := stageFlag(cmd), jsonFlag(cmd)
	base := cmd.Flags().String("shm-dir", shm.DefaultShmBase, "where shared memory lies, as given to serve")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		d := &diagnosis{stage: cmp.Or(*stage, defaultStage), shmDir: *base}
		if err := shm.CheckStage(d.stage); err != nil {
			return &exitError{exitUsage, err}
		}
		d.machine()
		d.sharedMemory()
		d.container()
		d.gpu(cmd.Context())
		d.leftBehind()
		if d.runtimePlaces() {
			d.broker(cmd.Context())
			d.nats(cmd.Context(), *stage)
		}
		if *asJSON {
			if err := printJSON(cmd.OutOrStdout(), d.findings); err != nil {
				return err
			}
		} else {
			t := newTable(cmd.OutOrStdout(), "", "check", "found", "what helps")
			for _, f := range d.findings {
				t.AppendRow(table.Row{f.State, f.Check, f.Found, f.Do})
			}
			t.Render()
		}
		failed := 0
		for _, f := range d.findings {
			if f.State == stateFail {
				failed++
			}
		}
		if failed > 0 {
			return exitf(exitFailure, "%s failed", plural(uint64(failed), "check"))
		}
		return nil
	}
	return cmd
}
