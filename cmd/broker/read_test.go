package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"callboard/broker"
	callboard "callboard/clients/go"
	"callboard/tensor"
)

// liveStage is a broker in this process and a client of it.
func liveStage(t *testing.T) (*broker.Broker, *callboard.Stage) {
	t.Helper()
	ownPlaces(t)
	b, err := broker.Start(broker.Config{Stage: "s", ShmDir: t.TempDir(), MemoryBytes: 16 << 20})
	require.NoError(t, err)
	t.Cleanup(b.Close)
	stage, err := callboard.Dial(context.Background(), callboard.Options{Stage: "s", Name: "test"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = stage.Close() })
	t.Setenv(stageEnv, "s")
	return b, stage
}

// poses writes and seals two prims with three numbers each.
func poses(t *testing.T, stage *callboard.Stage, ordinal uint64, values []float32) {
	t.Helper()
	ctx := context.Background()
	q, err := stage.QueryFromPathList(ctx, []string{"/World/R0", "/World/R1"})
	require.NoError(t, err)
	defer q.Release()
	rows := [][3]float32{[3]float32(values[:3]), [3]float32(values[3:])}
	op, err := stage.WriteAttribute(ctx, q, "pose", rows, callboard.WriteOptions{Ordinal: ordinal})
	require.NoError(t, err)
	require.NoError(t, op.Wait(ctx))
	op, err = stage.AdvanceWriteFloor(ordinal, callboard.SealOptions{})
	require.NoError(t, err)
	require.NoError(t, op.Wait(ctx))
}

func TestReadShowsEveryPrimOrThoseAskedFor(t *testing.T) {
	_, stage := liveStage(t)
	poses(t, stage, 7, []float32{1, 2, 3, 4, 5, 6.5})

	code, out, notes := call("read", "pose")
	require.Equal(t, exitOK, code, notes)
	require.Contains(t, out, "pose  float32x3, 2 prims, ordinal 7, floor 7, epoch 1\n")
	require.Regexp(t, `/World/R0  1  2  3\n/World/R1  4  5  6.5\n`, out)

	code, out, notes = call("read", "pose", "--prim", "/World/R1", "--json")
	require.Equal(t, exitOK, code, notes)
	var groups []readGroup
	require.NoError(t, json.Unmarshal([]byte(out), &groups))
	require.Equal(t, []readRow{{Prim: "/World/R1", Values: []any{4.0, 5.0, 6.5}}}, groups[0].Rows)
	require.EqualValues(t, 7, groups[0].Ordinal)

	code, out, _ = call("read", "pose", "--rows", "1")
	require.Equal(t, exitOK, code)
	require.Contains(t, out, "and 1 row more")
}

// Behaviour 20, 36: rows of their own length, and text as text.
func TestReadShowsArrays(t *testing.T) {
	_, stage := liveStage(t)
	ctx := context.Background()
	q, err := stage.QueryFromPathList(ctx, []string{"/World/R0", "/World/R1"})
	require.NoError(t, err)
	defer q.Release()
	for name, w := range map[string]callboard.Write{
		"hull":  {Values: [][]float32{{1, 2.5, 3}, {}}},
		"label": {Values: []string{"left \"arm\"", "€"}, Semantic: tensor.SemanticString},
	} {
		op, err := stage.WriteAttribute(ctx, q, name, w.Values, callboard.WriteOptions{Ordinal: 3, IsArray: true, Semantic: w.Semantic})
		require.NoError(t, err)
		require.NoError(t, op.Wait(ctx))
	}
	op, err := stage.AdvanceWriteFloor(3, callboard.SealOptions{})
	require.NoError(t, err)
	require.NoError(t, op.Wait(ctx))

	code, out, notes := call("read", "hull")
	require.Equal(t, exitOK, code, notes)
	require.Contains(t, out, "hull  float32 array, 2 prims, ordinal 3, floor 3, epoch 1\n")
	require.Regexp(t, `/World/R0  1  2.5  3 *\n/World/R1 *\n`, out)
	code, out, _ = call("read", "hull", "--values", "2")
	require.Equal(t, exitOK, code)
	require.Contains(t, out, "1  2.5  … and 1 more")
	code, out, _ = call("read", "label")
	require.Equal(t, exitOK, code)
	require.Contains(t, out, `"left \"arm\""`)
	require.Contains(t, out, `"€"`)

	code, out, notes = call("read", "hull", "--json")
	require.Equal(t, exitOK, code, notes)
	var groups []readGroup
	require.NoError(t, json.Unmarshal([]byte(out), &groups))
	require.Equal(t, "array", groups[0].Kind)
	require.Equal(t, []readRow{{Prim: "/World/R0", Values: []any{1.0, 2.5, 3.0}}, {Prim: "/World/R1", Values: []any{}}}, groups[0].Rows)

	code, out, _ = call("ls", "--json")
	require.Equal(t, exitOK, code)
	require.Regexp(t, `"kind": *"array"`, out)
}

func TestReadSaysWhatIsNotThere(t *testing.T) {
	b, stage := liveStage(t)
	poses(t, stage, 1, make([]float32, 6))
	for arguments, c := range map[string]struct {
		code int
		says string
	}{
		"read nothing":               {exitNotFound, `no attribute "nothing"`},
		"read pose --prim /World/R2": {exitNotFound, `prim /World/R2 has no sealed value of attribute "pose"`},
		"read pose --prim World":     {exitUsage, `does not start with "/"`},
		"read pose --rows -1":        {exitUsage, "--rows is -1"},
		"read @reserved":             {exitFailure, "reserved"},
		"read pose pose":             {exitUsage, "got 2 arguments"},
	} {
		code, _, notes := call(strings.Fields(arguments)...)
		require.Equal(t, c.code, code, "%s: %s", arguments, notes)
		require.Contains(t, notes, c.says)
	}
	b.Close()
	code, _, notes := call("read", "pose")
	require.Equal(t, exitNoBroker, code, notes)
}

func TestLsAndInfoShowWhatWasWritten(t *testing.T) {
	_, stage := liveStage(t)
	poses(t, stage, 3, make([]float32, 6))
	code, out, notes := call("ls")
	require.Equal(t, exitOK, code, notes)
	require.Regexp(t, `pose +fixed +float32x3 +- +none +cpu +2 +3 +3 +0 +1 +24 B`, out)

	code, out, notes = call("info")
	require.Equal(t, exitOK, code, notes)
	require.Regexp(t, `test +go +\d+ +[0-9a-f]{16} +0 +0 +0 B`, out)
	require.Regexp(t, `adopt_refused +0`, out)

	code, out, notes = call("ls", "--json")
	require.Equal(t, exitOK, code, notes)
	var listed struct {
		Attributes []struct{ Name string }
	}
	require.NoError(t, json.Unmarshal([]byte(out), &listed))
	require.Equal(t, "pose", listed.Attributes[0].Name)

	// The shell asks for names while the user types.
	code, out, _ = call("__complete", "read", "")
	require.Equal(t, exitOK, code)
	require.Contains(t, out, "pose\tfloat32x3\n")
}

func TestWatchShowsCommitsAndEndsAfterCountOrInTime(t *testing.T) {
	_, stage := liveStage(t)
	seen, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for ordinal := uint64(1); ; ordinal++ {
			select {
			case <-seen:
				return
			default:
			}
			poses(t, stage, ordinal, make([]float32, 6))
			time.Sleep(2 * time.Millisecond)
		}
	}()
	code, out, notes := call("watch", "--attribute", "pose", "--count", "3", "--timeout", "30s")
	close(seen)
	<-done
	require.Equal(t, exitOK, code, notes)
	require.Equal(t, 3, strings.Count(out, "\n"), out)
	require.Regexp(t, `commit +epochs? \d+.* pose@\d+ \d+ rows`, out)

	code, _, notes = call("watch", "--attribute", "nobody", "--count", "1", "--timeout", "100ms")
	require.Equal(t, exitTimeout, code)
	require.Contains(t, notes, "0 events in 100ms: expected 1")
}
