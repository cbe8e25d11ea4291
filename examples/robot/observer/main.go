package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math"
	"os/signal"
	"syscall"
	"time"

	callboard "callboard/clients/go"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil && ctx.Err() == nil {
		log.Fatal("observer: ", err)
	}
}

func run(ctx context.Context) error {
	stage, err := callboard.Dial(ctx, callboard.Options{Name: "observer", ReadOnly: true})
	if err != nil {
		return err
	}
	defer stage.Close()
	root, err := stage.QueryFromPathList(ctx, []string{"/"})
	if err != nil {
		return err
	}
	defer root.Release()

	for range stage.Epochs(ctx) {
		if err := show(ctx, stage, root); err != nil {
			return err
		}
		select { // slower than the ticks: the next epoch is the newest one, no backlog
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	_, err = stage.Follow(ctx, stage.Epoch()) // why the session is over
	return err
}

// show prints what was seen and commanded at the newest tick that both sides have sealed.
func show(ctx context.Context, stage *callboard.Stage, root *callboard.Query) error {
	names := []string{"lidar/points", "lidar/valid", "command"}
	read, err := stage.ReadAttributes(ctx, root, names, callboard.ReadOptions{Common: true})
	if errors.Is(err, callboard.ErrOutOfRange) {
		fmt.Println("observer: the controller is further behind than the driver keeps ticks")
		return nil
	}
	if err != nil {
		return err
	}
	defer read.Release()
	seen := map[string]*callboard.Group{}
	for group, err := range read.Groups() {
		if err != nil {
			return err
		}
		defer group.Release() // its rows are in shared memory until then
		seen[group.Attribute()] = group
	}
	if len(seen) < len(names) {
		fmt.Println("observer: not all nodes have sealed something")
		return nil
	}
	points, err := callboard.Values[float32](seen["lidar/points"])
	if err != nil {
		return err
	}
	valid, err := callboard.Values[bool](seen["lidar/valid"])
	if err != nil {
		return err
	}
	command, err := callboard.Rows[struct{ Heading, Nearest, Speed float64 }](seen["command"])
	if err != nil {
		return err
	}
	nearest := math.Inf(1)
	for i, good := range valid {
		if good {
			nearest = min(nearest, math.Hypot(float64(points[3*i]), float64(points[3*i+1])))
		}
	}
	fmt.Printf("observer: tick %d: nearest %.2f m; commanded for %.2f m: heading %.3f rad, speed %.2f m/s\n",
		read.Ordinal(), nearest, command[0].Nearest, command[0].Heading, command[0].Speed)
	return nil
}
