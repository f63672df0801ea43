package serve

import (
	"context"

	"k8s.io/apiserver/pkg/server/routine"
)

// WhenServed calls done when the request of ctx has been answered, by a handler that
// has returned. For a watch that is later: handlers leave it to a task that is run
// when they, and all that they were called by, have returned.
func WhenServed(ctx context.Context, done func()) {
	task := routine.TaskFrom(ctx)
	if task == nil || task.Func == nil {
		done()
		return
	}
	serve := task.Func
	task.Func = func() {
		defer done()
		serve()
	}
}
