package workers

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"

	callboard "callboard/clients/go"
	"callboard/control"
)

// waitingMax is how many announcements wait for a worker that is busy. Those beyond are
// dropped: listing finds the groups.
const waitingMax = 16

// WorkOn is Stage.WorkOn with announcements: workers subscribe in one NATS queue group, so
// that each group is offered to one of them, and list groups now and then in case an
// announcement was lost. Where NATS is not in reach they list only.
func WorkOn(ctx context.Context, stage *callboard.Stage, attribute string, fill func(*callboard.MapGroup) error) error {
	announced, stop, err := Announced(stage, attribute)
	if err == nil {
		defer stop()
	}
	return stage.WorkOn(ctx, attribute, callboard.WorkOptions{Announced: announced}, fill)
}

// Announced gives the groups of an attribute as the broker announces them, each to one of
// those who ask, until stop is called. Errors: the stage's NATS is not in reach.
func Announced(stage *callboard.Stage, attribute string) (groups <-chan callboard.OpenGroup, stop func(), err error) {
	info, err := control.ReadRuntimeFile(filepath.Join(stage.RuntimeDir(), control.RuntimeFileName))
	if err != nil {
		return nil, nil, err
	}
	subjects, err := control.NewSubjects(info.Host, info.Stage)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the stage's runtime file: %w", err)
	}
	subject, err := subjects.Group(attribute)
	if err != nil {
		return nil, nil, err
	}
	connection, err := control.Connect(info, control.RoleFull)
	if err != nil {
		return nil, nil, err
	}
	waiting := make(chan callboard.OpenGroup, waitingMax)
	unsubscribe, err := control.SubscribeWork(connection, subject, func(_ string, data []byte) {
		var e control.GroupEvent
		if json.Unmarshal(data, &e) != nil || e.GroupCount < 2 || e.Generation != info.Generation {
			return // a session of one group is its owner's
		}
		g := callboard.OpenGroup{Session: e.Session, Index: int(e.GroupIndex), Ordinal: e.Ordinal, First: int(e.Query.FirstPrim), Rows: int(e.Prims), Attempt: int(e.Attempt)}
		select {
		case waiting <- g:
		default:
		}
	})
	if err != nil {
		connection.Close()
		return nil, nil, err
	}
	return waiting, func() { unsubscribe(); connection.Close() }, nil
}
