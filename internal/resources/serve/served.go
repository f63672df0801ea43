package serve

import (
	"context"

	"k8s.io/apiserver/pkg/server/routine"
)

// WhenServed calls done when the response to the request of ctx is complete. Call it
// after the handler has returned. A watch is served later, by a task that runs after all
// handlers of the request have returned; done then follows the task.
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
