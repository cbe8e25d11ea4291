package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"callboard/control"
	"callboard/shm"
)

const requestTimeout = 3 * time.Second

// observer is a connection with the observer's credential to the NATS server of one stage's broker.
type observer struct {
	info      control.RuntimeInfo
	subjects  control.Subjects
	request   func(ctx context.Context, subject string, request, response any) error
	subscribe func(subject string, handle func(subject string, data []byte)) (stop func(), err error)
	connected func() bool
	close     func()
}

// runtimeInfo finds a stage's broker and reads where its NATS server is.
// stage may be empty: then it is the default one, or whatever $CALLBOARD_RUNTIME_DIR serves.
func runtimeInfo(stage string) (dir string, info control.RuntimeInfo, err error) {
	named := stage != ""
	if !named {
		stage = defaultStage
	}
	if err := shm.CheckStage(stage); err != nil {
		return "", info, &exitError{exitUsage, err}
	}
	if dir, err = shm.FindRuntime(stage); err != nil {
		return "", info, err
	}
	info, err = control.ReadRuntimeFile(filepath.Join(dir, control.RuntimeFileName))
	if err == nil && named && info.Stage != stage {
		err = fmt.Errorf("%s serves stage %q, not %q; name that one, or set CALLBOARD_RUNTIME_DIR to the directory of the other", dir, info.Stage, stage)
	}
	return dir, info, noBroker(err)
}

// observe connects. That NATS is out of reach says nothing about shared memory, and the error says so.
func observe(stage string) (*observer, error) {
	dir, info, err := runtimeInfo(stage)
	if err != nil {
		return nil, err
	}
	role := control.RoleObserver
	if none := (control.Credential{}); info.Observer == none {
		role = control.RoleFull // an external server whose operator made no observer
	}
	connection, err := control.Connect(info, role)
	if err != nil {
		return nil, exitf(exitNoBroker, "%w\n  %s says so. If its broker was killed, `callboard gc` removes what it left;\n"+
			"  if only NATS is out of reach, `callboard read` still works, it needs shared memory alone", err, filepath.Join(dir, control.RuntimeFileName))
	}
	subjects, err := control.NewSubjects(info.Host, info.Stage)
	if err != nil {
		connection.Close()
		return nil, err
	}
	return &observer{
		info: info, subjects: subjects,
		request: func(ctx context.Context, subject string, request, response any) error {
			return control.Request(ctx, connection, subject, request, response)
		},
		subscribe: func(subject string, handle func(string, []byte)) (func(), error) {
			return control.Subscribe(connection, subject, handle)
		},
		connected: connection.IsConnected,
		close:     connection.Close,
	}, nil
}

// describe asks for the state of the stage, or of some of its attributes: page by page where there is much.
func (o *observer) describe(ctx context.Context, attributes ...string) (*control.Description, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var all *control.Description
	request := control.DescribeRequest{Attributes: attributes}
	for {
		var page control.Description
		if err := o.request(ctx, o.subjects.Describe(), request, &page); err != nil {
			return nil, err
		}
		if all == nil {
			all = &page
		} else {
			all.Attributes, all.Clients = append(all.Attributes, page.Attributes...), append(all.Clients, page.Clients...)
		}
		request.FirstAttribute, request.FirstClient = len(all.Attributes), len(all.Clients)
		if len(page.Attributes)+len(page.Clients) == 0 || len(all.Attributes) >= page.AttributeCount && len(all.Clients) >= page.ClientCount {
			return all, nil
		}
	}
}

// describeStage is observe and describe, for commands that ask once.
func describeStage(ctx context.Context, stage string, attributes ...string) (*control.Description, error) {
	o, err := observe(stage)
	if err != nil {
		return nil, err
	}
	defer o.close()
	return o.describe(ctx, attributes...)
}
