package main

import (
	"context"
	"fmt"
	"log"
	"time"

	callboard "callboard/clients/go"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	// Attach to the stage "default", or to what $CALLBOARD_STAGE names.
	stage, err := callboard.Dial(ctx, callboard.Options{Name: "quick start"})
	if err != nil {
		return err
	}
	defer stage.Close()

	// Publish copies a value once and seals it: from here on every process sees it.
	if _, err := stage.Publish(ctx, "pose", [7]float64{0, 0, 1, 0, 0, 0, 1}); err != nil {
		return err
	}

	// An image is one value of shape (480, 640, 3). Map leases the stage's own memory for
	// it, so filling that is all the work there is.
	uint8s, err := callboard.ParseDType("uint8")
	if err != nil {
		return err
	}
	image, err := stage.Map(ctx, "camera/rgb", []int{480, 640, 3}, uint8s)
	if err != nil {
		return err
	}
	defer image.Abort() // does nothing once it was committed
	pixels, err := callboard.Values[uint8](image)
	if err != nil {
		return err
	}
	for i := range pixels {
		pixels[i] = uint8(i)
	}
	if err := image.Commit(ctx); err != nil { // pixels must not be touched from here on
		return err
	}

	// A snapshot shows everything at one instant. What it gives out lies where the
	// producer wrote it: nothing is copied, and nothing changes until Release.
	snapshot, err := stage.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer snapshot.Release()
	frame, err := snapshot.Latest(ctx, "camera/rgb")
	if err != nil {
		return err
	}
	defer frame.Release()
	pose, err := snapshot.Latest(ctx, "pose")
	if err != nil {
		return err
	}
	defer pose.Release()
	at, err := callboard.Values[float64](pose)
	if err != nil {
		return err
	}
	fmt.Printf("epoch %d: %s %v of ordinal %d, pose %v\n", snapshot.Epoch(), frame.DType(), frame.Shape(), frame.Ordinal(), at)
	return nil
}
