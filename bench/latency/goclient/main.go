package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"

	callboard "callboard/clients/go"
)

const (
	stampBytes  = 24 // round, time before map, time before unmap
	sampleBytes = 16 // cycle, handoff
	roundsMin   = 3
)

func main() {
	role := publishRounds
	if len(os.Args) > 1 && os.Args[1] == "reader" {
		role = readRounds
		os.Args = append(os.Args[:1], os.Args[2:]...)
	}
	if len(os.Args) < 7 {
		fmt.Fprintln(os.Stderr, "usage: goclient STAGE ATTRIBUTE BYTES ROUNDS WARM_UP_ROUNDS SECONDS ...")
		os.Exit(2)
	}
	if err := role(context.Background(), os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// readRounds answers each round with its sample on standard output, after one empty
// answer that says it follows. Its standard input says that the attribute exists.
func readRounds(ctx context.Context, stageName, attribute string) error {
	stage, err := callboard.Dial(ctx, callboard.Options{Stage: stageName, Name: "bench reader"})
	if err != nil {
		return err
	}
	defer stage.Close()
	if _, err := io.ReadFull(os.Stdin, make([]byte, 1)); err != nil {
		return err
	}
	epoch := stage.Epoch()
	var sample [sampleBytes]byte
	for expected := uint64(1); ; expected++ {
		if _, err := os.Stdout.Write(sample[:]); err != nil {
			return err
		}
		if epoch, err = stage.Follow(ctx, epoch); err != nil {
			return err
		}
		group, err := stage.Latest(ctx, attribute)
		if err != nil {
			return err
		}
		bytes, err := callboard.Values[uint8](group)
		if err != nil {
			return err
		}
		round, started, unmap := binary.LittleEndian.Uint64(bytes), binary.LittleEndian.Uint64(bytes[8:]), binary.LittleEndian.Uint64(bytes[16:])
		now := uint64(time.Now().UnixNano())
		group.Release()
		if round != expected {
			return fmt.Errorf("the reader found round %d, expected %d", round, expected)
		}
		binary.LittleEndian.PutUint64(sample[:], now-started)
		binary.LittleEndian.PutUint64(sample[8:], now-unmap)
	}
}

func publishRounds(ctx context.Context, stageName, attribute string) (err error) {
	size, err1 := strconv.Atoi(os.Args[3])
	rounds, err2 := strconv.Atoi(os.Args[4])
	warmUp, err3 := strconv.Atoi(os.Args[5])
	seconds, err4 := strconv.ParseFloat(os.Args[6], 64)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	reader := exec.Command("/proc/self/exe", append([]string{"reader"}, os.Args[1:]...)...)
	reader.Stderr = os.Stderr
	declared, err := reader.StdinPipe()
	if err != nil {
		return err
	}
	answers, err := reader.StdoutPipe()
	if err != nil {
		return err
	}
	if err := reader.Start(); err != nil {
		return err
	}
	defer func() {
		_ = reader.Process.Kill()
		_ = reader.Wait()
	}()
	stage, err := callboard.Dial(ctx, callboard.Options{Stage: stageName, Name: "bench producer"})
	if err != nil {
		return err
	}
	defer stage.Close()
	publish := func(round uint64) error {
		started := time.Now().UnixNano()
		session, err := stage.Map(ctx, attribute, []int{size}, callboard.DType{Code: 1, Bits: 8, Lanes: 1})
		if err != nil {
			return err
		}
		bytes, err := session.Bytes()
		if err != nil {
			return err
		}
		binary.LittleEndian.PutUint64(bytes, round)
		binary.LittleEndian.PutUint64(bytes[8:], uint64(started))
		binary.LittleEndian.PutUint64(bytes[16:], uint64(time.Now().UnixNano()))
		return session.Commit(ctx)
	}
	if err := publish(0); err != nil { // declares it
		return err
	}
	if _, err := declared.Write([]byte{1}); err != nil {
		return err
	}
	sample := make([]byte, sampleBytes)
	if _, err := io.ReadFull(answers, sample); err != nil {
		return fmt.Errorf("the reader ended early: %w", err)
	}
	var samples [][2]uint64
	budget := time.Duration(seconds * float64(time.Second))
	until := time.Now().Add(budget)
	for round := 1; len(samples) < rounds; round++ {
		if err := publish(uint64(round)); err != nil {
			return err
		}
		if _, err := io.ReadFull(answers, sample); err != nil {
			return fmt.Errorf("the reader ended early: %w", err)
		}
		if round > warmUp {
			samples = append(samples, [2]uint64{binary.LittleEndian.Uint64(sample), binary.LittleEndian.Uint64(sample[8:])})
		} else {
			until = time.Now().Add(budget)
		}
		if len(samples) >= roundsMin && time.Now().After(until) {
			break
		}
	}
	for _, s := range samples {
		fmt.Println(s[0], s[1])
	}
	return nil
}
